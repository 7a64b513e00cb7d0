-- Adds to the history a robots.txt that a node has begun to obey.
-- KEYS: history, the sorted set of sites; history:robotstxt:<host>, a hash. Each file that differs from its
--       predecessor is under '<time> <origin>': when it was first noted, and from where. 'name <origin>' is
--       the field of the newest.
-- ARGV: the origin; the file, packed; for how long the history is kept (ms).

@include(semaphore_middleware.link:shared/wall)

local SITES, FILES, ORIGIN, FILE, HISTORY = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local HOST = string.sub(FILES, #SITES + #':robotstxt:' + 1)
local MOST_FIELDS = 500

if redis.call('HLEN', FILES) >= MOST_FIELDS then return 0 end
local newest = redis.call('HGET', FILES, 'name ' .. ORIGIN)
if not newest or redis.call('HGET', FILES, newest) ~= FILE then
  newest = string.format('%.0f %s', WALL, ORIGIN)
  redis.call('HSET', FILES, newest, FILE, 'name ' .. ORIGIN, newest)
end
-- Kept longer only with its site, as the number of sites is bounded. ZSCORE would need a further right.
local is_site = redis.call('ZADD', SITES, 'XX', 'INCR', 0, HOST)
redis.call('PEXPIRE', FILES, is_site and HISTORY + DAY or DAY)
return 1
