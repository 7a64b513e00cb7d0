-- Shared by `sync`, `evict`, `inspect` and `forget`: how a scope is read and written back.

local function wake(scope)
  local start = scope.idle_since - QUIET
  -- promise: delay of an idle site
  scope.last_start, scope.next_at_rate = start + scope.last_start, start + scope.next_at_rate
  local learned = scope.learned
  if learned then
    learned.backoff_end = learned.backoff_end > 0 and start + learned.backoff_end or 0
    @hook(on_wake)
    scope.has_learned = true
    if NOW > math.max(start, pause_end(learned)) + MEMORY then
      local before = learned
      learned = nothing_learned()
      scope.learned = learned
      @hook(remember)
    end
  end
  scope.concurrency, scope.idle_since = 0, 0
end

local function read_scope(key, queue, state, own, learned)
  local scope = {
    @zero(state),
    key = key, queue = queue, is_new = not state,
    begun = 0, -- requests that have begun since the last call, or may have
    begun_at = NOW, -- the last of them
    own = read_entry(own), others = false, learned = learned and read_learned(learned),
    effective = false, limit = 0, lowered_by = 0, wants_feedback = false, problem = false, reason = 0,
  }
  if state then
    @scope.(state) = cmsgpack.unpack(state)
    check_read(scope.idle_since)
    if scope.idle_since > 0 then wake(scope) end
  end
  return scope
end

local function read_fields(key)
  return unpack(redis.call('HMGET', key, 'state', OWN, 'learned'))
end

local function pack_state(scope)
  return cmsgpack.pack(@scope.(state))
end

-- An idle scope keeps its last starts for as long as the next one depends on them, and for a while what the
-- site has taught. Starts and pauses are kept for up to an hour longer: keys expire by the wall clock,
-- which may be set ahead.
local function write_idle(scope)
  if not scope.is_new then redis.call('DEL', scope.key) end -- promise: idle scope
  local learned = scope.learned
  local effective = scope.effective
  -- The last start is after NOW if the clock went back.
  local kept = math.max(0, effective.delay > 0
    and scope.last_start + effective.delay * (1 + effective.jitter) - NOW or 0,
    math.min(scope.next_at_rate - NOW, effective.interval * effective.burst))
  kept = kept + math.min(kept, HOUR)
  if kept == 0 and not learned then return end
  if learned then
    learned.backoff_end = math.max(0, learned.backoff_end - NOW)
    local is_known = learned.backoff > 0 or (learned.answered > 0 and NOW < learned.answered + MEMORY)
    local lesson = is_known and MEMORY or 0 -- how long it is kept
    if learned.backoff_end > 0 then lesson = learned.backoff_end + HOUR end
    lesson = math.max(lesson, @hook(on_idle))
    if lesson > 0 then
      kept = math.max(kept, lesson)
      redis.call('HSET', scope.key, 'learned', pack_learned(learned))
    end
  end
  if kept == 0 then return end -- mutant 0 -> 1: what expires after 0 ms is deleted at once
  if scope.listed < WALL + kept then
    scope.listed = WALL + kept
    list(scope.key, scope.listed)
  end
  scope.last_start, scope.next_at_rate = scope.last_start - NOW, scope.next_at_rate - NOW
  scope.idle_since, scope.tick, scope.started = NOW + QUIET, 0, 0
  scope.notified, scope.due = '', math.huge
  scope.expires = 0 -- set again when the scope is in use
  redis.call('HSET', scope.key, 'state', pack_state(scope))
  redis.call('PEXPIRE', scope.key, math.ceil(kept))
end

-- Whether any node holds a permit of the scope, or has requests that wait.
local function is_in_use(scope)
  return scope.held + scope.waiting + scope.suspended > 0
end

local function write_scope(scope)
  if not is_in_use(scope) then return write_idle(scope) end
  local is_ending = scope.expires < WALL + KEPT / 2 -- promise: keys in use
  if is_ending then scope.expires = WALL + KEPT end
  local is_unlisted = scope.listed < WALL + LISTED / 2
  if is_unlisted then scope.listed = WALL + LISTED end
  if scope.jobs then redis.call('HSET', scope.key, 'jobs', cmsgpack.pack(scope.jobs)) end
  if scope.own then
    redis.call('HSET', scope.key, 'state', pack_state(scope), OWN, pack_entry(scope.own))
  else
    redis.call('HSET', scope.key, 'state', pack_state(scope))
    redis.call('HDEL', scope.key, OWN)
  end
  if scope.has_learned then
    redis.call('HSET', scope.key, 'learned', pack_learned(scope.learned))
  end
  for node, entry in pairs(scope.others or {}) do
    if not entry then
      redis.call('HDEL', scope.key, 'node:' .. node)
    elseif entry.has_changed then
      redis.call('HSET', scope.key, 'node:' .. node, pack_entry(entry))
    end
  end
  if is_ending then redis.call('PEXPIREAT', scope.key, scope.expires) end -- promise: keys expire
  if is_unlisted then list(scope.key, scope.listed) end
end
