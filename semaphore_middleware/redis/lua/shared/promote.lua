-- Put in front of every verb: `promote`, which alone grants, and the loop over the scopes of a call.
-- Keys, arguments and reply: see the prelude.

local function drop_dead(scope, key)
  repeat
    local ids = redis.call('ZRANGEBYSCORE', scope[key], '-inf', scope.now, 'LIMIT', 0, MOST)
    if #ids > 0 then leave(scope, ids) end
  until #ids < MOST
end

local function first_end(scope, key)
  return tonumber(redis.call('ZRANGE', scope[key], 0, 0, 'WITHSCORES')[2]) or math.huge
end

local function drop_the_dead(scope)
  if not scope.due or scope.now < scope.due then return end
  drop_dead(scope, 'held')
  drop_dead(scope, 'waiting')
  local due = math.min(first_end(scope, 'held'), first_end(scope, 'waiting'))
  if due < math.huge then keep(scope, 'due', due) end
end

-- How many permits may be granted now; if only time prevents it, also how long that takes (ms).
local function grantable(scope)
  if scope.in_force.paused then return 0 end
  local free = scope.in_force.limit - scope.count.held
  if free <= 0 then return 0 end
  local earliest = math.max(scope.from, scope.next, scope.site.quiet)
  if scope.now < earliest then return 0, earliest - scope.now end
  if scope.in_force.delay > 0 then return 1, 0 end -- one start at a time
  return free
end

local function space_next_start(scope)
  local varied = scope.in_force.delay * (1 + scope.in_force.jitter * (2 * DICE - 1))
  keep(scope, 'next', scope.now + math.max(0, varied))
  if scope.rule.delay or scope.ruled then keep(scope, 'ruled', scope.rule.delay and 1 or 0) end
end

-- Takes the first waiters from the queue, with their lease ends.
local function take_from_line(scope, most)
  local popped = redis.call('ZPOPMIN', scope.line, most)
  local ids, ends = {}, {}
  for i = 1, #popped, 2 do
    table.insert(ids, popped[i])
  end
  if #ids == 0 then return ids, ends end
  keep(scope, 'virtual', place_of(tonumber(popped[#popped])))
  -- A grant does not lengthen the lease: the waiter's node counts its own deadline from its last
  -- call, so the server must not believe in more.
  ends = redis.call('ZMSCORE', scope.waiting, unpack(ids))
  redis.call('ZREM', scope.waiting, unpack(ids))
  count(scope, 'line', -#ids)
  for node, fewer in pairs(by_node(ids)) do
    fewer_waiters(scope, node, fewer)
  end
  return ids, ends
end

-- If nobody waits, permits asked for in this call are granted without going through the queue.
local function take_from_coming(scope, most)
  local ids, ends, rest = {}, {}, {}
  for i, id in ipairs(scope.coming) do
    if i <= most then
      ids[i], ends[i] = id, lease_end(scope)
    else
      table.insert(rest, id)
    end
  end
  scope.coming = rest
  return ids, ends
end

local function grant(scope, ids, ends)
  local members = {}
  for i, id in ipairs(ids) do
    members[2 * i - 1], members[2 * i] = ends[i] or lease_end(scope), id
    keep(scope, 'since:' .. id, scope.now)
    if node_of(id) == NODE then
      table.insert(scope.granted, number_of(id))
    else
      tell(id, 'granted ' .. number_of(id))
    end
  end
  redis.call('ZADD', scope.held, unpack(members))
  count(scope, 'held', #ids)
  keep(scope, 'grants', (scope.grants or 0) + #ids)
  if scope.in_force.delay > 0 then space_next_start(scope) end
end

-- Tells the first waiter when to ask again, once: for the others there is no reason to ask.
local function tell_when(scope, wait)
  local head = redis.call('ZRANGE', scope.line, 0, 0)[1]
  if not head then return end
  if node_of(head) == NODE then
    scope.again = wait
  elseif scope.told ~= head then
    tell(head, 'again ' .. number_of(head) .. ' ' .. math.ceil(wait))
  end
  keep(scope, 'told', head)
end

-- The only place that grants. It drops permits whose leases are over; then, while a permit is free and
-- nothing forbids it, it moves the first waiter to the holders and notifies its node.
local function promote(scope)
  drop_the_dead(scope)
  close_gaps(scope)
  if scope.count.line > 0 then stand_in_line(scope) end
  local free, wait = grantable(scope)
  while free > 0 and scope.count.line + #scope.coming > 0 do
    local take = scope.count.line > 0 and take_from_line or take_from_coming
    grant(scope, take(scope, math.min(free, MOST)))
    free, wait = grantable(scope)
  end
  stand_in_line(scope)
  if wait and scope.count.line > 0 then
    tell_when(scope, wait)
  elseif scope.told then
    keep(scope, 'told', '') -- it may ask in vain now, and then has to be told again
  end
end

local function reply_of(scope)
  local limit, site = scope.in_force.limit, scope.site
  local spare = limit - scope.count.held - scope.count.line
  local curious = scope.in_force.adaptive or site.backoff > 0 or site.failures > 0
  return {
    'ok', math.ceil(scope.again or -1), spare, limit, curious and 1 or 0,
    math.ceil(scope.incident or -1), scope.granted, scope.lost,
  }
end

-- Runs `change(scope)`, then `promote`, for each scope of the call. Every verb is a call of this.
-- Reply: for each scope "ok", when to ask again (ms, -1: no need), how many permits are free (less the
-- waiters), the limit that holds now, 1 if feedback is wanted for ordinary responses too, the backoff
-- that this call has started (ms, -1: none), the caller's granted numbers, its lost numbers; or "hello"
-- if the epoch is unknown, and nothing was done.
local function for_each_scope(change)
  local replies, argument = {}, HEAD
  for key = 1, #KEYS, 6 do
    local scope = {
      held = KEYS[key], line = KEYS[key + 1], waiting = KEYS[key + 2], state = KEYS[key + 3],
      asked = {
        limit = tonumber(ARGV[argument + 1]),
        delay = tonumber(ARGV[argument + 2]),
        jitter = tonumber(ARGV[argument + 3]),
        adaptive = tonumber(ARGV[argument + 4]),
      },
      report = ARGV[argument + 5],
      ids = {}, coming = {}, granted = {}, lost = {}, gaps = {},
    }
    local permits = tonumber(ARGV[argument + 6])
    for i = 1, permits do
      local number = ARGV[argument + 6 + i]
      scope.ids[i] = NODE .. ':' .. number
      own[scope.ids[i]] = number
    end
    argument = argument + 6 + permits

    local epoch = epoch_of(KEYS[key + 4])
    if epoch.known then
      scope.epoch, scope.now, scope.from = epoch, epoch.now, epoch.from
      scope.rule = rule_of(scope.held, KEYS[key + 5])
      read(scope)
      agree_on_limit(scope)
      change(scope)
      promote(scope)
      write(scope)
      table.insert(replies, reply_of(scope))
    else
      table.insert(replies, { 'hello' })
    end
  end
  send_messages()
  return replies
end
