-- Ends the fetch of a robots.txt, and tells the nodes that wait for it. Does nothing if the fetch is by now
-- another's, or nobody's: then what was fetched here may be older than what others know.
-- KEYS: robotstxt, robotstxt_ends. ARGV: see `shared/robotstxt`; what was fetched (empty: it was given
-- up, and another is to fetch it); for how long it is valid (ms).
-- Reply: 1 if it was done, else 0.

@include(shared/robotstxt)

local DATA, VALID = ARGV[5], tonumber(ARGV[6])
local record = read_record()
if record.fetcher ~= ASKER then return 0 end
for _, node in ipairs(record.waiters) do
  redis.call('PUBLISH', PREFIX .. ':node:' .. node, 'robotstxt ' .. ORIGIN)
end
record.fetcher, record.lease_end, record.waiters = '', 0, {}
if DATA ~= '' then
  record.data, record.valid_until = DATA, WALL + VALID
end
write_record(record)
return 1
