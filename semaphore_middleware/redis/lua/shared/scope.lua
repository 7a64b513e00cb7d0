-- Shared by `sync`, `evict` and `inspect`: how a scope is read and written back.
-- ARGV begins: node, lease, the clock's longest step (ms), a random number in [0, 1).
-- Each redis.call costs more than what it carries, so a scope is read by one and written by one.

local NODE = ARGV[1]
local LEASE = tonumber(ARGV[2])
local RANDOM = tonumber(ARGV[4]) -- each call seeds math.random the same
local EPOCH = read_epoch(tonumber(ARGV[3]))
local NOW = EPOCH.now

local KEPT = 86400000 -- how long a scope is kept that nobody speaks of: a day
local MEMORY = 600000 -- how long it is kept what an idle site's answers have taught
local NOBODY = ''

local function nothing_agreed()
  return { concurrency = 0, delay = 0, jitter = 0, adaptive = false, interval = 0, burst = 1 }
end

local function read_state(scope, text)
  local agreed = nothing_agreed()
  scope.agreed = agreed
  if text then
    agreed.concurrency, agreed.delay, agreed.jitter, agreed.adaptive, agreed.interval, agreed.burst, scope.held, scope.waiting, scope.tick, scope.due, scope.next_start, scope.next_at_rate, scope.started, scope.told, scope.is_ruled, scope.expires, scope.idle_since =
      cmsgpack.unpack(text)
  else
    scope.held, scope.waiting, scope.tick, scope.due, scope.next_start, scope.next_at_rate, scope.started, scope.told, scope.is_ruled, scope.expires, scope.idle_since =
      0, 0, 0, math.huge, 0, 0, 0, NOBODY, false, 0, 0
  end
end

local function pack_state(scope)
  local agreed = scope.agreed
  return cmsgpack.pack(
    agreed.concurrency, agreed.delay, agreed.jitter, agreed.adaptive, agreed.interval, agreed.burst,
    scope.held, scope.waiting, -- of all accounts
    scope.tick, -- counts what decides whose turn it is: permits granted and accounts opened
    scope.due, -- no account is to be closed before this
    scope.next_start, scope.next_at_rate, -- the theoretical arrival times of delay and rate
    scope.started, -- requests that got a permit since the scope was idle
    scope.told, -- the first node in the queue, if it was told when to ask again
    scope.is_ruled, -- whether the arrival times are from an operator's delay or rate
    scope.expires, -- when the key expires, by the wall clock
    scope.idle_since -- by the wall clock; arrival times and the backoff's end count from then; 0: in use
  )
end

-- While the scope was idle, the epoch's clock may have stood still, but not the wall clock.
local function wake(scope)
  local passed = math.max(0, WALL - scope.idle_since)
  local function since_now(left)
    return NOW + math.max(0, left - passed)
  end
  scope.next_start, scope.next_at_rate = since_now(scope.next_start), since_now(scope.next_at_rate)
  if scope.learned.backoff_end > 0 then
    scope.learned.backoff_end = since_now(scope.learned.backoff_end)
  end
  scope.agreed = nothing_agreed()
  scope.idle_since = 0
end

local function read_scope(key, queue)
  local state, learned, own = unpack(redis.call('HMGET', key, 'state', 'learned', 'node:' .. NODE))
  local scope = { key = key, queue = queue, learned = read_learned(learned), is_new = not state }
  read_state(scope, state)
  if scope.idle_since > 0 then wake(scope) end
  local account = read_account(own)
  if account then account.is_queued = waiting_at(account) > 0 end
  scope.accounts = { [NODE] = account } -- those that were looked at; false: closed in this call
  scope.rule = EPOCH.has_rules and rule_of(name_of(key)) or NO_RULE
  return scope
end

local function set_learned(scope, part, value)
  if scope.learned[part] ~= value then
    scope.learned[part] = value
    scope.has_learned = true
  end
end

-- An adaptive limit starts low, to measure the site's usual latency.
local function apply_working_limit(scope)
  if scope.learned.working == 0 then set_learned(scope, 'working', 1) end
  local force = scope.in_force
  force.limit = math.min(force.concurrency, math.floor(scope.learned.working))
end

-- A start that is further away than the pace in force allows was set before an operator changed it.
local function apply_changed_pace(scope)
  local force, rule = scope.in_force, scope.rule
  local is_ruled = (rule.delay or rule.rate) and true or false
  if is_ruled or scope.is_ruled then
    local delay, rate = force.delay * (1 + force.jitter), force.interval * force.burst
    scope.next_start = math.min(scope.next_start, NOW + delay)
    scope.next_at_rate = math.min(scope.next_at_rate, NOW + rate)
  end
  scope.is_ruled = is_ruled
end

local function apply_limit(scope)
  scope.in_force = in_force(scope.rule, scope.agreed)
  apply_changed_pace(scope)
  if scope.in_force.adaptive then apply_working_limit(scope) end
end

-- An idle scope keeps only its arrival times, until then, and for a while what the site has taught.
local function write_idle(scope)
  if not scope.is_new then redis.call('DEL', scope.key) end
  local learned = scope.learned
  scope.next_start = math.max(0, scope.next_start - NOW)
  scope.next_at_rate = math.max(0, scope.next_at_rate - NOW)
  learned.backoff_end = math.max(0, learned.backoff_end - NOW)
  local kept = math.max(scope.next_start, scope.next_at_rate, learned.backoff_end)
  local has_learned = learned.backoff_end + learned.backoff + learned.failures + learned.working > 0
  if has_learned then kept = kept + MEMORY end
  if kept == 0 then return end
  scope.idle_since, scope.tick, scope.started, scope.told = WALL, 0, 0, NOBODY
  scope.due = math.huge
  redis.call('HSET', scope.key, 'state', pack_state(scope))
  if has_learned then redis.call('HSET', scope.key, 'learned', pack_learned(learned)) end
  redis.call('PEXPIRE', scope.key, math.ceil(kept))
end

local function write_scope(scope)
  if scope.held == 0 and scope.waiting == 0 then return write_idle(scope) end
  local is_ending = scope.expires < WALL + KEPT / 2
  if is_ending then scope.expires = WALL + KEPT end
  local values, gone = { 'state', pack_state(scope) }, {}
  if scope.has_learned then
    values[3], values[4] = 'learned', pack_learned(scope.learned)
  end
  for node, account in pairs(scope.accounts) do
    if not account then
      table.insert(gone, 'node:' .. node)
    elseif account.has_changed then
      table.insert(values, 'node:' .. node)
      table.insert(values, pack_account(account))
    end
  end
  redis.call('HSET', scope.key, unpack(values))
  if gone[1] then redis.call('HDEL', scope.key, unpack(gone)) end
  if is_ending then
    redis.call('PEXPIREAT', scope.key, scope.expires)
  end
end
