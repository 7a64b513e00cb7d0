-- Notes in the history a robots.txt that a node has begun to obey.
-- KEYS: history:robotstxt:<host>, a hash. Each file that differs from its predecessor is under
-- '<time> <origin>': when it was first noted, and from where. 'name <origin>' is the field of the newest,
-- 'last <origin>' when a node last began to obey it.
-- ARGV: the origin; the file, packed; for how long the history is kept (ms).

@include(semaphore_middleware.link:shared/wall)

local FILES, ORIGIN, FILE, HISTORY = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local MOST_FIELDS = 500

if redis.call('HLEN', FILES) >= MOST_FIELDS then return 0 end
local newest = redis.call('HGET', FILES, 'name ' .. ORIGIN)
if not newest or redis.call('HGET', FILES, newest) ~= FILE then
  newest = string.format('%.0f %s', WALL, ORIGIN)
  redis.call('HSET', FILES, newest, FILE, 'name ' .. ORIGIN, newest)
end
redis.call('HSET', FILES, 'last ' .. ORIGIN, WALL)
redis.call('PEXPIRE', FILES, HISTORY + DAY)
return 1
