-- Shared by `sync`, `evict` and `inspect`: how a scope is read and written back.
-- KEYS[2]: rules; then for each scope: scope, a hash with the fields "state", "learned" and "node:<name>"
-- for each account; queue, a sorted set of the nodes that wait, by whose turn it is. ARGV[2]: the node.
-- Each redis.call costs more than what it carries, so a scope is read by one and written by one.

local NODE = ARGV[2]
local OWN = 'node:' .. NODE
local KEPT = 86400000 -- how long keys that no call names are kept: a day (ms)
local PREFIX = string.sub(KEYS[1], 1, -1 - #':epoch')

-- What is wrong with a scope that could not be served: somebody has overwritten its keys. What is wrong
-- with the server goes on as the error that it was.
local function problem_of(raised)
  local OF_SERVER = {
    'OOM', 'READONLY', 'MISCONF', 'NOREPLICAS', 'NOPERM', 'ACL failure', 'The user executing',
  }
  local text = type(raised) == 'table' and raised.err or tostring(raised)
  for _, name in ipairs(OF_SERVER) do
    if string.find(text, name, 1, true) then error(raised, 0) end
  end
  return text
end

local function name_of(scope)
  return string.sub(scope.key, #PREFIX + #':scope:' + 1)
end

local MEMORY = 600000 -- how long is kept what an idle site has taught (ms)
local HOUR = 3600000 -- as far may the wall clock be set ahead before an idle site's pause is forgotten (ms)

local function wake(scope)
  local start = scope.idle_since - QUIET
  scope.last_start, scope.next_at_rate = start + scope.last_start, start + scope.next_at_rate
  local learned = scope.learned
  if learned then
    local over = start + learned.backoff_end
    learned.backoff_end, scope.has_learned = learned.backoff_end > 0 and over or 0, true
    if NOW > over + MEMORY then scope.learned = nothing_learned() end
  end
  scope.concurrency, scope.idle_since = 0, 0
end

local function read_scope(key, queue)
  local state, own, learned = unpack(redis.call('HMGET', key, 'state', OWN, 'learned'))
  local scope = {
    key = key, queue = queue, is_new = not state,
    -- The strictest limit that nodes ask for; concurrency 0: nobody has yet.
    concurrency = 0, delay = 0, jitter = 0, adaptive = false, interval = 0, burst = 1,
    held = 0, waiting = 0, -- of all accounts
    pending = 0, -- of the permits held, those under which no request has begun
    begun = 0, -- requests that have begun since the last call, or may have
    tick = 0, -- counts what decides whose turn it is: grants, and accounts that are opened
    due = math.huge, -- no account is to be closed before this
    last_start = -math.huge, chance = 0, -- and the number drawn for the jitter after it, in [-1, 1)
    next_at_rate = -math.huge, -- the theoretical arrival time of the rate
    started = 0, -- requests that got a permit since the scope was idle
    told = '', -- the first node in the queue, if it was told when to ask again
    expires = 0, -- when the key expires, by the wall clock
    idle_since = 0, -- NOW + QUIET then; starts and the backoff's end count from it; 0: in use
    own = read_account(own), others = false, learned = learned and read_learned(learned),
    force = false, limit = 0, problem = false,
  }
  if state then
    scope.concurrency, scope.delay, scope.jitter, scope.adaptive, scope.interval, scope.burst, scope.held,
      scope.waiting, scope.pending, scope.tick, scope.due, scope.last_start, scope.chance,
      scope.next_at_rate, scope.started, scope.told, scope.expires, scope.idle_since =
      cmsgpack.unpack(state)
    check_read(scope.idle_since)
    if scope.idle_since > 0 then wake(scope) end
  end
  return scope
end

local function pack_state(scope)
  return cmsgpack.pack(
    scope.concurrency, scope.delay, scope.jitter, scope.adaptive, scope.interval, scope.burst, scope.held,
    scope.waiting, scope.pending, scope.tick, scope.due, scope.last_start, scope.chance,
    scope.next_at_rate, scope.started, scope.told, scope.expires, scope.idle_since
  )
end

-- An idle scope keeps its last starts for as long as the next one depends on them, and for a while what the
-- site has taught. Keys expire by the wall clock, which may be set ahead: all is kept for longer than that.
local function write_idle(scope)
  if not scope.is_new then redis.call('DEL', scope.key) end
  local learned = scope.learned
  local force = scope.force
  local kept = math.max(0, scope.last_start + force.delay * (1 + force.jitter) - NOW,
    math.min(scope.next_at_rate - NOW, force.interval * force.burst))
  kept = kept + math.min(kept, HOUR)
  if kept == 0 and not learned then return end
  if learned then
    learned.backoff_end = math.max(0, learned.backoff_end - NOW)
    local lesson = learned.backoff_end + learned.backoff + learned.failures + learned.working
    if lesson > 0 or (learned.answered > 0 and NOW < learned.answered + MEMORY) then
      kept = math.max(kept, learned.backoff_end + (learned.backoff_end > 0 and HOUR or MEMORY))
      redis.call('HSET', scope.key, 'learned', pack_learned(learned))
    end
  end
  if kept == 0 then return end
  scope.last_start, scope.next_at_rate = scope.last_start - NOW, scope.next_at_rate - NOW
  scope.idle_since, scope.tick, scope.started = NOW + QUIET, 0, 0
  scope.told, scope.due = '', math.huge
  scope.expires = 0 -- a scope in use again sets it anew
  redis.call('HSET', scope.key, 'state', pack_state(scope))
  redis.call('PEXPIRE', scope.key, math.ceil(kept))
end

local function write_scope(scope)
  if scope.held == 0 and scope.waiting == 0 then return write_idle(scope) end
  local is_ending = scope.expires < WALL + KEPT / 2
  if is_ending then scope.expires = WALL + KEPT end
  if scope.own then
    redis.call('HSET', scope.key, 'state', pack_state(scope), OWN, pack_account(scope.own))
  else
    redis.call('HSET', scope.key, 'state', pack_state(scope))
    redis.call('HDEL', scope.key, OWN)
  end
  if scope.has_learned then
    redis.call('HSET', scope.key, 'learned', pack_learned(scope.learned))
  end
  for node, account in pairs(scope.others or {}) do
    if not account then
      redis.call('HDEL', scope.key, 'node:' .. node)
    elseif account.has_changed then
      redis.call('HSET', scope.key, 'node:' .. node, pack_account(account))
    end
  end
  if is_ending then redis.call('PEXPIREAT', scope.key, scope.expires) end
end
