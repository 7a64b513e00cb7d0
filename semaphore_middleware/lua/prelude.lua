-- Put in front of every verb: how a call is read, what a scope is, and `promote`.
-- KEYS: five a scope, in this order: held, line, waiting, state, epoch.
-- ARGV: the head below; then for each scope: limit, delay (ms), jitter (share of the delay),
--       how many permits, and their numbers. A permit's id is "<node>:<number>".
-- Every time is in milliseconds.

local CHANNELS = ARGV[1] -- first part of the channel that a node's grants are told on
local NODE = ARGV[2]
local LIFE = life_of(ARGV[3], ARGV[4]) -- run id of the server that the caller believes to talk to
local LEASE = tonumber(ARGV[5])
local STEP = tonumber(ARGV[6]) -- of the clock, in one call
local KEPT = tonumber(ARGV[7]) -- how long an epoch is kept after its last use
local DICE = tonumber(ARGV[8]) -- in [0, 1): each call seeds math.random the same
local HEAD = 8

local TIES = 2097152 -- 2^21: a place and its tie-breaker share one double, 32 + 21 bits

local messages = {} -- channel -> what `promote` has to say to that node

local function node_of(id)
  return string.match(id, '^(.*):')
end

local function number_of(id)
  return string.match(id, '([^:]*)$')
end

local function tell(id, word)
  local channel = CHANNELS .. node_of(id)
  messages[channel] = messages[channel] or {}
  table.insert(messages[channel], word)
end

local function send_messages()
  for channel, words in pairs(messages) do
    redis.call('PUBLISH', channel, table.concat(words, ' '))
  end
end

-- The server's life ------------------------------------------------------------------------------

local epochs = {} -- one look at an epoch key is enough for a call

local function epoch_of(key)
  if epochs[key] then return epochs[key] end
  local life, from, expires, wall, clock =
    unpack(redis.call('HMGET', key, 'life', 'from', 'expires', 'wall', 'clock'))
  local epoch = { known = life == LIFE }
  if epoch.known then
    epoch.now = bucket_clock(wall, clock, STEP)
    epoch.from = tonumber(from)
    epoch.expires = tonumber(expires)
    if epoch.now - clock > STEP / 8 or WALL < tonumber(wall) then
      redis.call('HSET', key, 'wall', WALL, 'clock', epoch.now)
    end
    if epoch.expires < WALL + KEPT / 2 then
      epoch.expires = WALL + KEPT
      redis.call('HSET', key, 'expires', epoch.expires)
      redis.call('PEXPIREAT', key, epoch.expires)
    end
  end
  epochs[key] = epoch
  return epoch
end

-- A scope ----------------------------------------------------------------------------------------

local STATE = { 'limit', 'delay', 'jitter', 'next', 'virtual', 'joined', 'expires', 'told' }

local function read_state(scope)
  local values = redis.call('HMGET', scope.state, unpack(STATE))
  for i, name in ipairs(STATE) do
    scope[name] = name == 'told' and values[i] or tonumber(values[i]) or nil
  end
  scope.virtual = scope.virtual or 0
  scope.joined = scope.joined or 0
  scope.next = scope.next or 0
  if not scope.limit and scope.next > 0 then
    -- Idle: nobody called, so its clock may have stood still. The key's own expiry has not.
    local left = redis.call('PTTL', scope.state)
    scope.next = math.min(scope.next, scope.now + math.max(0, left))
  end
  scope.expires = scope.expires or 0
end

-- The strictest limit in use wins, until the scope is idle.
local function agree_on_limit(scope)
  scope.limit = math.min(scope.limit or scope.asked.limit, scope.asked.limit)
  if not scope.delay or scope.asked.delay > scope.delay then
    scope.delay, scope.jitter = scope.asked.delay, scope.asked.jitter
  end
end

-- The line ---------------------------------------------------------------------------------------
-- Start-time fair queueing (Goyal, Vin and Cheng, 1996): a waiter's place is
-- max(virtual time, its node's last place) + 1, and virtual time is the place last granted.
-- So nodes take turns, and within a node first come is first served.

local function forget_waiter(scope, node)
  local left = redis.call('HINCRBY', scope.state, 'waiters:' .. node, -1)
  if left <= 0 then redis.call('HDEL', scope.state, 'waiters:' .. node, 'last:' .. node) end
  return left
end

local function join(scope, ids)
  if #ids == 0 then return end
  local last = tonumber(redis.call('HGET', scope.state, 'last:' .. NODE)) or 0
  local place = math.max(scope.virtual, last)
  for _, id in ipairs(ids) do
    place = place + 1
    scope.joined = (scope.joined + 1) % TIES
    redis.call('ZADD', scope.line, place * TIES + scope.joined, id)
    redis.call('ZADD', scope.waiting, scope.now + LEASE, id)
    redis.call('HSET', scope.state, 'since:' .. id, scope.now)
  end
  redis.call('HSET', scope.state, 'last:' .. NODE, place)
  redis.call('HINCRBY', scope.state, 'waiters:' .. NODE, #ids)
  scope.fresh = true
end

local function leave_line(scope, id)
  if redis.call('ZREM', scope.line, id) == 1 then
    redis.call('ZREM', scope.waiting, id)
    redis.call('HDEL', scope.state, 'since:' .. id)
    local node = node_of(id)
    scope.thinned[node] = forget_waiter(scope, node) > 0 or nil
  end
end

-- Whoever leaves the line leaves a gap in its node's places, and those behind it move up. Else a
-- node would be served as if all that it ever asked for and gave up still stood there.
local function close_gaps(scope)
  if not next(scope.thinned) then return end
  local last = {}
  local line = redis.call('ZRANGE', scope.line, 0, -1, 'WITHSCORES')
  for i = 1, #line, 2 do
    local id, score = line[i], tonumber(line[i + 1])
    local node, place = node_of(id), math.floor(score / TIES)
    if scope.thinned[node] then
      last[node] = math.min(place, math.max(scope.virtual, last[node] or 0) + 1)
      if last[node] < place then
        redis.call('ZADD', scope.line, last[node] * TIES + score % TIES, id)
      end
    end
  end
  for node, place in pairs(last) do
    redis.call('HSET', scope.state, 'last:' .. node, place)
  end
end

local function leave(scope, id)
  if redis.call('ZREM', scope.held, id) == 1 then
    redis.call('HDEL', scope.state, 'since:' .. id)
  else
    leave_line(scope, id)
  end
end

local function drop_the_dead(scope)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', scope.held, '-inf', scope.now)) do
    leave(scope, id)
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', scope.waiting, '-inf', scope.now)) do
    leave_line(scope, id)
  end
end

-- How many permits may be granted now; when only time is in the way, also how long that takes.
local function grantable(scope)
  local free = scope.limit - redis.call('ZCARD', scope.held)
  if free <= 0 then return 0 end
  local earliest = math.max(scope.from, scope.next)
  if scope.now < earliest then return 0, earliest - scope.now end
  if scope.delay > 0 then return 1, 0 end -- one start at a time
  return free
end

local function space_next_start(scope)
  local varied = scope.delay * (1 + scope.jitter * (2 * DICE - 1))
  scope.next = scope.now + math.max(0, varied)
end

local function grant(scope, id, score)
  -- A grant does not lengthen the lease: the waiter's node counts its own deadline from its last
  -- call, so the server must not believe in more.
  local lease_end = redis.call('ZSCORE', scope.waiting, id)
  redis.call('ZREM', scope.waiting, id)
  redis.call('ZADD', scope.held, lease_end or scope.now + LEASE, id)
  redis.call('HSET', scope.state, 'since:' .. id, scope.now)
  scope.virtual = math.floor(score / TIES)
  scope.fresh = true
  forget_waiter(scope, node_of(id))
  if scope.delay > 0 then space_next_start(scope) end
  if node_of(id) == NODE then
    table.insert(scope.granted, number_of(id))
  else
    tell(id, 'granted ' .. number_of(id))
  end
end

-- Tells the head of the line when to ask again, once: it is the only one with a reason to.
local function tell_when(scope, wait)
  local head = redis.call('ZRANGE', scope.line, 0, 0)[1]
  if not head then return end
  if node_of(head) == NODE then
    scope.again = wait
  elseif scope.told ~= head then
    tell(head, 'again ' .. number_of(head) .. ' ' .. math.ceil(wait))
  end
  scope.told = head
end

-- The only place that grants: drops the dead, and while a permit is free and nothing forbids it,
-- moves the head of the line to the holders and tells its node.
local function promote(scope)
  drop_the_dead(scope)
  close_gaps(scope)
  local count, wait = grantable(scope)
  if count > 0 then
    local heads = redis.call('ZPOPMIN', scope.line, count)
    for i = 1, #heads, 2 do
      grant(scope, heads[i], tonumber(heads[i + 1]))
    end
    if wait then wait = select(2, grantable(scope)) end
  end
  if wait then tell_when(scope, wait) end
end

-- Writes back what a verb changed. An idle scope leaves nothing behind, but for the time of its
-- next start, until then. Keys are kept longer than their epoch: when they are gone, so is it, and
-- the next caller hears "hello", not that the scope is idle.
local function write_state(scope)
  if redis.call('EXISTS', scope.held, scope.line) == 0 then
    redis.call('DEL', scope.state)
    local wait = math.ceil(scope.next - scope.now)
    if wait > 0 then
      redis.call('HSET', scope.state, 'next', scope.next)
      redis.call('PEXPIRE', scope.state, wait)
    end
    return
  end
  if scope.expires < scope.epoch.expires + KEPT / 2 then
    scope.expires = scope.epoch.expires + KEPT
    scope.fresh = true
  end
  redis.call('HSET', scope.state, 'limit', scope.limit, 'delay', scope.delay,
    'jitter', scope.jitter, 'next', scope.next, 'virtual', scope.virtual,
    'joined', scope.joined, 'expires', scope.expires, 'told', scope.told or '')
  if scope.fresh then
    for _, key in ipairs({ scope.held, scope.line, scope.waiting, scope.state }) do
      redis.call('PEXPIREAT', key, scope.expires)
    end
  end
end

-- A call -----------------------------------------------------------------------------------------

-- The frame of every verb: `change(scope)`, then `promote`, for each scope of the call.
-- Reply: for each scope "ok", when to ask again (ms, -1: no need), the caller's granted
-- numbers, its lost numbers; or "hello" where the epoch is of another life, and nothing is done.
local function for_each_scope(change)
  local replies, argument = {}, HEAD
  for key = 1, #KEYS, 5 do
    local scope = {
      held = KEYS[key], line = KEYS[key + 1], waiting = KEYS[key + 2], state = KEYS[key + 3],
      asked = {
        limit = tonumber(ARGV[argument + 1]),
        delay = tonumber(ARGV[argument + 2]),
        jitter = tonumber(ARGV[argument + 3]),
      },
      ids = {}, granted = {}, lost = {}, thinned = {},
    }
    local count = tonumber(ARGV[argument + 4])
    for i = 1, count do
      scope.ids[i] = NODE .. ':' .. ARGV[argument + 4 + i]
    end
    argument = argument + 4 + count

    local epoch = epoch_of(KEYS[key + 4])
    if epoch.known then
      scope.epoch, scope.now, scope.from = epoch, epoch.now, epoch.from
      read_state(scope)
      agree_on_limit(scope)
      change(scope)
      promote(scope)
      write_state(scope)
      local again = math.ceil(scope.again or -1)
      table.insert(replies, { 'ok', again, scope.granted, scope.lost })
    else
      table.insert(replies, { 'hello' })
    end
  end
  send_messages()
  return replies
end
