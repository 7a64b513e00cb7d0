-- Adds a node's requests to sites in one minute to those of all nodes. May be sent twice, or late: each batch
-- of a node counts at most once. The first one has no sites: it only announces the node.
-- KEYS: history, a sorted set of sites, by when they were last noted; history:nodes, a sorted set of the
--       nodes that have not sent their last batch, by the time of the newest one; history:said:<node>, a
--       hash; history:seconds:<minute>, a hash of the starts in each second; then for each scope
--       history:<hour>:<scope>, a hash.
-- ARGV: for how long the history is kept (ms); the node; the batch's number; the minute, as minutes of Unix
--       time; 1 if this is the last one; 1 if it has been sent before; its job; then for each scope its name,
--       and its record `minute` with what follows it.
-- Reply: the server's wall clock (ms); nil if the key that would say whether it has counted is lost.

@include(semaphore_middleware.link:shared/wall)

local HISTORY, NODE, BATCH, MINUTE = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local IS_LAST, IS_RESENT = ARGV[5] == '1', ARGV[6] == '1'
local SITES, NODES, SAID, SECONDS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local JOB = ARGV[7]
local FIRST_KEY, FIRST_ARG = 5, 8
local SECONDS_KEPT = 600000 -- ms
local MOST_SITES = 100000
local HIGHEST, LOWEST = { @zero(highest) }, { @zero(lowest) } -- sets of the numbers that are not summed
local IN_SECONDS = '>' .. string.rep('H', 60)
local FIELD = tostring(MINUTE % 60)
local MINUTE_BYTES = @bytes(minute)
local PAUSE_BYTES = 8 + @bytes(pause)
local MOST_FIELDS = 300 -- of an hour: with more, no further pause is noted

-- The key of a scope's history in an hour. `at`: a time in that hour (ms).
local function hour_key(at, scope)
  return string.format('%s:%d:%s', SITES, at / HOUR, scope)
end

-- The key of the robots.txt files of a host.
local function files_key(host)
  return SITES .. ':robotstxt:' .. host
end

-- Adds a node's starts in each second to those of other nodes. Returns all, and the most in a second.
local function add_seconds(known, sent)
  local sums, others, most = { struct.unpack(IN_SECONDS, sent) }, { struct.unpack(IN_SECONDS, known) }, 0
  for second = 1, 60 do
    sums[second] = math.min(65535, sums[second] + others[second])
    most = math.max(most, sums[second])
  end
  return struct.pack(IN_SECONDS, unpack(sums, 1, 60)), most
end

local function add(a, b)
  return a + b
end

local function add_minute(key, scope, text)
  local minute, before = {}, {}
  @minute.(minute) = struct.unpack('@format(minute)', text)
  local seconds = string.sub(text, MINUTE_BYTES + 1, MINUTE_BYTES + 120)
  local known, of_job = unpack(redis.call('HMGET', key, FIELD, 'job:' .. JOB))
  of_job = (of_job or 0) + minute.requests
  if known then
    @before.(minute) = cmsgpack.unpack(known)
    local others = redis.call('HGET', SECONDS, scope)
    if others then seconds, minute.starts = add_seconds(others, seconds) end
    for name, number in pairs(before) do
      local sum = HIGHEST[name] and math.max or LOWEST[name] and math.min or add
      minute[name] = sum(number, minute[name])
    end
  end
  redis.call('HSET', key, FIELD, cmsgpack.pack(@minute.(minute)), 'job:' .. JOB, of_job)
  if not known then redis.call('PEXPIRE', key, HOUR + HISTORY) end
  return seconds
end

-- Adds a node's note of a pause to the notes of other nodes.
local function add_pause(scope, paused_at, text)
  local key, field = hour_key(paused_at, scope), string.format('pause:%.0f', paused_at)
  local pause = {}
  @pause.(pause) = struct.unpack('@format(pause)', text)
  local known = redis.call('HGET', key, field)
  if known then
    local before = {}
    @before.(pause) = cmsgpack.unpack(known)
    for name, number in pairs(before) do
      pause[name] = math.max(number, pause[name])
    end
  elseif redis.call('HLEN', key) > MOST_FIELDS then
    return
  end
  redis.call('HSET', key, field, cmsgpack.pack(@pause.(pause)))
  redis.call('PEXPIRE', key, HOUR + HISTORY)
end

-- Removes the members of a sorted set whose history has expired.
local function drop_old(key)
  local MOST = 100 -- in one call
  local old = redis.call('ZRANGE', key, '-inf', WALL - HISTORY - HOUR, 'BYSCORE', 'LIMIT', 0, MOST)
  if old[1] then redis.call('ZREM', key, unpack(old)) end
end

-- If there are too many sites, forgets those not noted for longest: their last day now, the rest as their
-- keys expire.
local function drop_sites()
  drop_old(SITES)
  local dropped = redis.call('ZRANGE', SITES, 0, -1 - MOST_SITES, 'WITHSCORES')
  for i = 1, #dropped, 2 do
    local scope, last, hours = dropped[i], tonumber(dropped[i + 1]), {}
    for at = last - DAY, last + HOUR, HOUR do
      table.insert(hours, hour_key(at, scope))
    end
    redis.call('DEL', files_key(scope), unpack(hours))
    redis.call('ZREM', SITES, scope)
  end
end

local said = tonumber(redis.call('HGET', SAID, 'batch') or 0)
if BATCH <= said then return WALL end -- rule 27: counts once
if IS_RESENT and BATCH > 1 and said == 0 then return false end -- rule 27: lost key
redis.call('HSET', SAID, 'batch', BATCH)
redis.call('PEXPIRE', SAID, DAY)
drop_old(NODES)
if IS_LAST then
  redis.call('ZREM', NODES, NODE)
else
  redis.call('ZADD', NODES, WALL, NODE)
  redis.call('PEXPIRE', NODES, HISTORY)
end
local noted, seconds = {}, {}
for i = FIRST_KEY, #KEYS do
  local at = 2 * (i - FIRST_KEY)
  local scope, text = ARGV[FIRST_ARG + at], ARGV[FIRST_ARG + at + 1]
  noted[at + 1], noted[at + 2] = WALL, scope
  seconds[at + 1], seconds[at + 2] = scope, add_minute(KEYS[i], scope, text)
  redis.call('PEXPIRE', files_key(scope), HISTORY + DAY)
  for offset = MINUTE_BYTES + 121, #text, PAUSE_BYTES do
    add_pause(scope, struct.unpack('>d', string.sub(text, offset)), string.sub(text, offset + 8))
  end
end
if #KEYS >= FIRST_KEY then
  redis.call('ZADD', SITES, unpack(noted))
  redis.call('HSET', SECONDS, unpack(seconds))
  redis.call('PEXPIRE', SECONDS, SECONDS_KEPT)
  redis.call('PEXPIRE', SITES, HOUR + HISTORY)
  drop_sites()
end
return WALL
