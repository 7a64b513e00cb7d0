-- Put in front of every verb: the queue of a scope, a waiter's place in it, and how to leave it.
-- Keys, arguments and reply: see the prelude.
-- Start-time fair queueing (Goyal, Vin and Cheng, 1996): a waiter's place is
-- max(virtual time, its node's last place) + 1, and virtual time is the place last granted.
-- So nodes take turns, and within a node it is first come, first served.

local TIES = 2097152 -- 2^21: a place and its tie-breaker share one double, 32 + 21 bits

local function place_of(score)
  return math.floor(score / TIES)
end

-- Puts the permits that were not granted at once into the queue.
local function stand_in_line(scope)
  local ids = scope.coming
  if #ids == 0 then return end
  local ends, places, ends_of = lease_end(scope), {}, {}
  local place = math.max(scope.virtual, scope['last:' .. NODE] or 0)
  local joined = scope.joined
  for i, id in ipairs(ids) do
    place = place + 1
    joined = (joined + 1) % TIES
    places[2 * i - 1], places[2 * i] = place * TIES + joined, id
    ends_of[2 * i - 1], ends_of[2 * i] = ends, id
    keep(scope, 'since:' .. id, scope.now)
  end
  redis.call('ZADD', scope.line, unpack(places))
  redis.call('ZADD', scope.waiting, unpack(ends_of))
  redis.call('HINCRBY', scope.state, 'waiters:' .. NODE, #ids)
  scope.changed['waiters:' .. NODE] = nil -- it must not be deleted any more
  count(scope, 'line', #ids)
  keep(scope, 'joined', joined)
  keep(scope, 'last:' .. NODE, place)
  scope.coming = {}
end

-- So many waiters of a node have left the queue. Returns whether any of them are left.
local function fewer_waiters(scope, node, fewer)
  local left = redis.call('HINCRBY', scope.state, 'waiters:' .. node, -fewer)
  if left <= 0 then
    forget(scope, 'waiters:' .. node)
    forget(scope, 'last:' .. node)
  end
  return left > 0
end

local function by_node(ids)
  local counts = {}
  for _, id in ipairs(ids) do
    counts[node_of(id)] = (counts[node_of(id)] or 0) + 1
  end
  return counts
end

local function leave_line(scope, ids)
  local places, gone, first = scores(scope, 'line', ids), {}, {}
  for i, id in ipairs(ids) do
    if places[i] then
      local score, node = tonumber(places[i]), node_of(id)
      table.insert(gone, id)
      first[node] = math.min(first[node] or score, score)
      forget(scope, 'since:' .. id)
    end
  end
  if #gone == 0 then return end
  redis.call('ZREM', scope.line, unpack(gone))
  redis.call('ZREM', scope.waiting, unpack(gone))
  count(scope, 'line', -#gone)
  for node, fewer in pairs(by_node(gone)) do
    if fewer_waiters(scope, node, fewer) then
      scope.gaps[node] = math.min(scope.gaps[node] or first[node], first[node])
    end
  end
end

-- A waiter that leaves the queue leaves a gap in its node's places, and those behind it move up. Else
-- a node would be served as if all that it asked for and gave up were still waiting.
local function close_gaps(scope)
  if not next(scope.gaps) then return end
  local last, start = {}, nil
  for node, score in pairs(scope.gaps) do
    last[node] = place_of(score) - 1
    start = math.min(start or score, score)
  end
  local behind = redis.call('ZRANGEBYSCORE', scope.line, start, '+inf', 'WITHSCORES')
  for i = 1, #behind, 2 do
    local id, score = behind[i], tonumber(behind[i + 1])
    local node, place = node_of(id), place_of(score)
    if last[node] then
      last[node] = math.min(place, math.max(scope.virtual, last[node]) + 1)
      if last[node] < place then
        redis.call('ZADD', scope.line, last[node] * TIES + score % TIES, id)
      end
    end
  end
  for node, place in pairs(last) do
    keep(scope, 'last:' .. node, place)
  end
  scope.gaps = {}
end

-- Returns whether any of them was held.
local function leave(scope, ids)
  local held = scope.count.held > 0 and redis.call('ZREM', scope.held, unpack(ids)) or 0
  if held > 0 then
    count(scope, 'held', -held)
    for _, id in ipairs(ids) do
      forget(scope, 'since:' .. id)
    end
  end
  if held < #ids then leave_line(scope, ids) end
  return held > 0
end
