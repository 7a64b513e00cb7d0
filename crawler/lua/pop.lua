-- Take the next request. In the same step the node counts as working: it may produce more.
-- ARGV: lease of that mark (ms).
-- Reply: the request, or nil.
local lease_ms = tonumber(ARGV[3])

if not takes_part() then
  return false
end
local first = redis.call("ZPOPMIN", requests)[1]
if not first then
  return false
end
work_for(lease_ms)
return first
