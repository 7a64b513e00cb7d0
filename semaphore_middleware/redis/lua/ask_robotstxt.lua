-- What a site's robots.txt says; or whether who asks is to fetch it, or to wait for the one that does.
-- KEYS: robotstxt, robotstxt_ends. ARGV: see `shared/robotstxt`.
-- Reply: "valid", what was fetched, for how long it is valid (ms); "fetch", what was fetched before, 0;
--        or "wait", nothing, for how long to leave it to another (ms).
-- Who fetches asks again to keep its lease. Safe to send twice, and late: then a node may be told
-- by its channel of a file that it does not want.

@include(shared/robotstxt)

local record = read_record()
local valid = left_until(record.valid_until, DAY)
if valid > 0 then return { 'valid', record.data, valid } end

local lease_left = left_until(record.lease_end, LEASE)
if record.fetcher == ASKER or record.fetcher == '' or lease_left == 0 then
  record.fetcher, record.lease_end = ASKER, WALL + LEASE
  write_record(record)
  return { 'fetch', record.data, 0 }
end
local is_known = false
for _, node in ipairs(record.waiters) do
  is_known = is_known or node == NODE
end
if not is_known then
  table.insert(record.waiters, NODE)
  write_record(record)
end
return { 'wait', '', lease_left }
