-- Ends the fetch of a robots.txt, and tells the nodes that wait for it. Does nothing if the fetch is by now
-- another's, or nobody's: then what was fetched here may be older than what others know.
-- KEYS: see `shared/robotstxt`; history:robotstxt:<host>, a hash of the files that were obeyed, by when each
-- was first fetched, and from where; and when each was last fetched.
-- ARGV: see `shared/robotstxt`; what was fetched (empty: it was given up, and another is to fetch it);
-- for how long it is valid, and the history is kept (ms).
-- Reply: 1 if it was done, else 0.

@include(shared/robotstxt)

if fetcher ~= ASKER then return 0 end
redis.call('HDEL', FILE, 'fetcher', 'lease_end', 'waiters')
if ARGV[5] ~= '' then keep('data', ARGV[5], 'valid_until', WALL + ARGV[6]) end
local HISTORY, MOST_FILES = tonumber(ARGV[7]), 500
if ARGV[5] ~= '' and HISTORY > 0 and redis.call('HLEN', KEYS[3]) < MOST_FILES then
  if ARGV[5] ~= data then redis.call('HSET', KEYS[3], string.format('%.0f %s', WALL, ORIGIN), ARGV[5]) end
  redis.call('HSET', KEYS[3], 'last ' .. ORIGIN, WALL)
  redis.call('PEXPIRE', KEYS[3], HISTORY + DAY)
end
for node in pairs(waiters) do
  redis.call('PUBLISH', string.sub(ORIGINS, 1, -1 - #'robotstxt') .. 'node:' .. node, 'robotstxt ' .. ORIGIN)
end
return 1
