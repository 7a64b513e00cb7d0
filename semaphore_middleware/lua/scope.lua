-- Put in front of every verb: a scope as it is read, and what is written back of it.
-- Keys, arguments and reply: see the prelude.
-- The state key has, besides FIELDS, for each node in line "last:<node>" (its last place there) and
-- "waiters:<node>" (how many it has there), and for each permit "since:<id>" (when it was granted,
-- or asked for).

local FIELDS = {
  'limit', 'delay', 'jitter', -- in force
  'next', -- when the next start may be
  'virtual', 'joined', -- the line's virtual time, and its tie-breaker
  'due', -- no lease ends before
  'expires', -- when the keys do
  'told', -- which head of the line knows when to ask again
}
table.insert(FIELDS, 'last:' .. NODE)

local function keep(scope, field, value)
  if scope[field] ~= value then
    scope[field] = value
    scope.changed[field] = value
  end
end

local function forget(scope, field)
  scope[field] = nil
  scope.changed[field] = false
end

-- How many members `held` and `line` have (`waiting` has those of `line`). A key that once had none
-- is made anew with the next one, and then knows no end.
local function count(scope, key, change)
  scope.count[key] = scope.count[key] + change
  if scope.count[key] == 0 then scope.endless[key] = true end
end

local function read(scope)
  local values = redis.call('HMGET', scope.state, unpack(FIELDS))
  for i, field in ipairs(FIELDS) do
    scope[field] = field == 'told' and values[i] or tonumber(values[i]) or nil
  end
  scope.changed, scope.count, scope.endless = {}, {}, { state = not scope.limit }
  for _, key in ipairs({ 'held', 'line' }) do
    scope.count[key] = 0
    count(scope, key, redis.call('ZCARD', scope[key]))
  end
  if scope.count.held + scope.count.line > 0 then scope.due = scope.due or 0 end
  scope.virtual = scope.virtual or 0
  scope.joined = scope.joined or 0
  scope.next = scope.next or 0
  if not scope.limit and scope.next > 0 then
    -- Idle: nobody called, so its clock may have stood still. The key's own expiry has not.
    local left = redis.call('PTTL', scope.state)
    scope.next = math.min(scope.next, scope.now + math.max(0, left))
  end
end

-- The strictest limit in use wins, until the scope is idle.
local function agree_on_limit(scope)
  keep(scope, 'limit', math.min(scope.limit or scope.asked.limit, scope.asked.limit))
  if not scope.delay or scope.asked.delay > scope.delay then
    keep(scope, 'delay', scope.asked.delay)
    keep(scope, 'jitter', scope.asked.jitter)
  end
end

-- The scores of these members, in their order; nothing where there is none.
local function scores(scope, key, ids)
  if scope.count[key] == 0 then return {} end
  return redis.call('ZMSCORE', scope[key], unpack(ids))
end

local function lease_end(scope)
  local ends = scope.now + LEASE
  keep(scope, 'due', math.min(scope.due or ends, ends))
  return ends
end

local function lengthen(scope, key, ids)
  if #ids == 0 then return end
  local ends, pairs_of = lease_end(scope), {}
  for i, id in ipairs(ids) do
    pairs_of[2 * i - 1], pairs_of[2 * i] = ends, id
  end
  redis.call('ZADD', scope[key], unpack(pairs_of))
end

-- An idle scope leaves nothing behind, but for the time of its next start, until then.
local function write_idle(scope)
  redis.call('DEL', scope.state)
  local wait = math.ceil(scope.next - scope.now)
  if wait > 0 then
    redis.call('HSET', scope.state, 'next', scope.next)
    redis.call('PEXPIRE', scope.state, wait)
  end
end

-- Keys are kept longer than their epoch: when they are gone, so is it, and the next caller hears
-- "hello", not that the scope is idle.
local function set_ends(scope, all)
  for _, key in ipairs({ 'held', 'line', 'waiting', 'state' }) do
    local counted = key == 'waiting' and 'line' or key
    if (all or scope.endless[counted]) and scope.count[counted] ~= 0 then
      redis.call('PEXPIREAT', scope[key], scope.expires)
    end
  end
end

local function write(scope)
  if scope.count.held + scope.count.line == 0 then return write_idle(scope) end
  local ends_soon = (scope.expires or 0) < scope.epoch.expires + KEPT / 2
  if ends_soon then keep(scope, 'expires', scope.epoch.expires + KEPT) end
  local values, gone = {}, {}
  for field, value in pairs(scope.changed) do
    if value then
      table.insert(values, field)
      table.insert(values, value)
    else
      table.insert(gone, field)
    end
  end
  in_parts('HSET', scope.state, values)
  in_parts('HDEL', scope.state, gone)
  set_ends(scope, ends_soon)
end
