-- Ends the fetch of a robots.txt, and tells the nodes that wait for it. Does nothing if the fetch is by now
-- another's, or nobody's: then what was fetched here may be older than what others know.
-- KEYS, ARGV: see `shared/robotstxt`; what was fetched (empty: it was given up, and another is to fetch it);
-- for how long it is valid (ms).
-- Reply: 1 if it was done, else 0.

@include(shared/robotstxt)

if fetcher ~= ASKER then return 0 end
redis.call('HDEL', FILE, 'fetcher', 'lease_end', 'waiters')
if ARGV[5] ~= '' then keep('data', ARGV[5], 'valid_until', WALL + ARGV[6]) end
for _, node in ipairs(waiters) do
  redis.call('PUBLISH', string.sub(ORIGINS, 1, -1 - #'robotstxt') .. 'node:' .. node, 'robotstxt ' .. ORIGIN)
end
return 1
