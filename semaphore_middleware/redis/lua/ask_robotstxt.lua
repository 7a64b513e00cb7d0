-- What a site's robots.txt says; or whether who asks is to fetch it, or to wait for the one that does.
-- KEYS, ARGV: see `shared/robotstxt`.
-- Reply: "valid", what was fetched, for how long it is valid (ms); "fetch", what was fetched before, 0;
--        or "wait", nothing, for how long to leave it to another (ms).
-- Who fetches asks again to keep its lease. Safe to send twice, and late: then a node may be told
-- by its channel of a file that it does not want.

@include(shared/robotstxt)

local valid = left_until(valid_until, DAY)
if valid > 0 then return { 'valid', data, valid } end

local lease_left = left_until(lease_end, LEASE)
if fetcher == ASKER or lease_left == 0 then
  keep('fetcher', ASKER, 'lease_end', WALL + LEASE)
  return { 'fetch', data, 0 }
end
if not waiters[NODE] then
  waiters[NODE] = true
  keep('waiters', cmsgpack.pack(waiters))
end
return { 'wait', '', lease_left }
