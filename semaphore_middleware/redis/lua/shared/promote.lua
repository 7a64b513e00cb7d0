-- Shared by `sync`, `evict` and `inspect`: `promote`, the only place that grants, and whose turn it is.
-- The next permit goes to the waiting node that holds the fewest, and among those to the one that was
-- served longest ago: max-min fairness (Bertsekas and Gallager, Data Networks, 1987) of the places at a
-- site. So a node that wants one place at a site that another one floods has it all the time.

local TICKS = 4294967296 -- 2^32: permits held, and the tick of the last one, share a double
local MOST_HELD = 2097151 -- 2^21 - 1
local MOST_GRANTS = 1000 -- that one call may hand out singly
local NO_LIMIT = 9007199254740992 -- 2^53

local function notify(node, word, ...)
  redis.call('PUBLISH', PREFIX .. ':node:' .. node, table.concat({ word, ... }, ' '))
end

-- Counts an account in the scope's totals, or out of them again.
local function count(scope, account, sign)
  scope.held = scope.held + sign * held_by(account)
  scope.waiting = scope.waiting + sign * waiting_at(account)
end

local function next_tick(scope)
  scope.tick = scope.tick + 1
  return scope.tick
end

-- Puts a node into the queue while it waits, at the place that is due to it now.
local function line_up(scope, node, account)
  if waiting_at(account) > 0 then
    local place = math.min(held_by(account), MOST_HELD) * TICKS + account.served
    redis.call('ZADD', scope.queue, place, node)
    account.is_queued = true
  elseif account.is_queued then
    redis.call('ZREM', scope.queue, node)
    account.is_queued = false
  end
end

local function close_account(scope, node, account)
  count(scope, account, -1)
  scope.accounts[node] = false
  if account.is_queued then redis.call('ZREM', scope.queue, node) end
end

local function account_of(scope, node)
  if scope.accounts[node] == nil then
    local account = read_account(redis.call('HGET', scope.key, 'node:' .. node))
    if account then account.is_queued = waiting_at(account) > 0 end
    scope.accounts[node] = account or false
  end
  return scope.accounts[node]
end

-- Calls visit(node, account) for each open account.
local function for_each_account(scope, visit)
  local fields = redis.call('HGETALL', scope.key)
  for i = 1, #fields, 2 do
    local node = string.match(fields[i], '^node:(.*)$')
    if node and scope.accounts[node] == nil then
      local account = read_account(fields[i + 1])
      account.is_queued = waiting_at(account) > 0
      scope.accounts[node] = account
    end
  end
  for node, account in pairs(scope.accounts) do
    if account then visit(node, account) end
  end
end

-- Looks at all accounts when one may be over, and adds the totals up anew.
local function close_ended_accounts(scope)
  if NOW < scope.due then return end
  scope.held, scope.waiting, scope.due = 0, 0, math.huge
  for_each_account(scope, function(node, account)
    count(scope, account, 1)
    if account.lease_end <= NOW then
      close_account(scope, node, account)
    else
      scope.due = math.min(scope.due, account.lease_end)
    end
  end)
end

-- How many may start now at a pace, or else how long until one may. The generic cell rate algorithm
-- (ITU-T I.371): `arrival` is the theoretical arrival time of the next start.
local function starts_at_pace(arrival, interval, burst)
  if interval == 0 then return NO_LIMIT end
  local earliest = arrival - (burst - 1) * interval
  if NOW < earliest then return 0, earliest - NOW end
  return math.min(burst, math.floor((NOW - earliest) / interval) + 1)
end

-- How many permits may be granted now; if only time prevents it, also how long that takes (ms).
local function grantable(scope)
  local force = scope.in_force
  if force.paused then return 0 end
  local free = force.limit - scope.held
  if free <= 0 then return 0 end
  local earliest = math.max(EPOCH.from, scope.learned.backoff_end)
  if NOW < earliest then return 0, earliest - NOW end
  if force.delay == 0 and force.interval == 0 then return free end
  local by_delay, delay_left = starts_at_pace(scope.next_start, force.delay, 1)
  local by_rate, rate_left = starts_at_pace(scope.next_at_rate, force.interval, force.burst)
  local starts = math.min(free, by_delay, by_rate)
  if starts == 0 then return 0, math.max(delay_left or 0, rate_left or 0) end
  return starts
end

local function space_next_starts(scope, starts)
  local force = scope.in_force
  local varied = force.delay * (1 + force.jitter * (2 * RANDOM - 1))
  scope.next_start = math.max(scope.next_start, NOW) + math.max(0, varied)
  scope.next_at_rate = math.max(scope.next_at_rate, NOW) + starts * force.interval
end

-- A grant does not lengthen the lease: the node counts its own deadline from its last statement, so the
-- server must not believe in more.
local function grant(scope, node, account, permits)
  account.granted = account.granted + permits
  account.served = next_tick(scope)
  account.has_changed = true
  scope.held = scope.held + permits
  scope.waiting = scope.waiting - permits
  if scope.in_force.delay > 0 or scope.in_force.interval > 0 then space_next_starts(scope, permits) end
  if node ~= NODE then scope.notified[node] = account end
end

-- Grants to the first in the queue: at once as many as keep it first.
local function grant_to_first(scope, most)
  local first = redis.call('ZRANGE', scope.queue, 0, 1, 'WITHSCORES')
  local node = first[1]
  if not node then
    scope.waiting = 0 -- the queue was lost; nodes line up again when they renew
    return
  end
  local account = account_of(scope, node)
  if account and waiting_at(account) > 0 then
    local ahead = first[4] and math.floor(first[4] / TICKS) - held_by(account) or most
    grant(scope, node, account, math.min(most, waiting_at(account), math.max(1, ahead)))
    line_up(scope, node, account)
  else
    redis.call('ZREM', scope.queue, node)
  end
end

-- Tells the first node in the queue when to ask again, once: the others have no reason to ask.
local function tell_when(scope, wait)
  if not wait or scope.waiting == 0 then
    scope.told = NOBODY
    return
  end
  local first = redis.call('ZRANGE', scope.queue, 0, 0)[1]
  if first == NODE then
    scope.retry_in = wait
  elseif first and scope.told ~= first then
    notify(first, 'retry', math.ceil(wait), name_of(scope.key))
  end
  scope.told = first or NOBODY
end

-- The only place that grants. It closes accounts whose lease is over; then, while a permit is free and
-- nothing forbids it, grants to the first in the queue and notifies its node.
local function promote(scope)
  close_ended_accounts(scope)
  scope.notified = {}
  local own = scope.accounts[NODE]
  local own_waiting = own and waiting_at(own) or 0
  local free, wait = grantable(scope)
  if free > 0 and own_waiting > 0 and scope.waiting == own_waiting then -- nobody else waits
    grant(scope, NODE, own, math.min(free, own_waiting))
    free, wait = grantable(scope)
  end
  if own then line_up(scope, NODE, own) end
  local grants = 0
  while free > 0 and scope.waiting > 0 and grants < MOST_GRANTS do
    grant_to_first(scope, free)
    grants = grants + 1
    free, wait = grantable(scope)
  end
  if free > 0 then wait = 0 end -- the rest is handed out in the next call
  for node, account in pairs(scope.notified) do
    notify(node, 'granted', account.term, account.granted, name_of(scope.key))
  end
  tell_when(scope, wait)
end
