-- Queue a request and note its fingerprint, in one step: a crash between the two would lose it.
-- ARGV: id; score, the lowest leaves first; request; fingerprint, empty for a request that may
-- come again; most fingerprints that the crawl may have, 0 for no limit.
-- Reply: 1 queued, 0 not wanted: it is known, or the crawl has all the pages it may have.
local id, score, request, fingerprint = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local most = tonumber(ARGV[8])

local function wanted()
  if fingerprint == "" then
    return true
  end
  if most > 0 and redis.call("SCARD", seen) >= most then
    return false
  end
  return redis.call("SADD", seen, fingerprint) == 1
end

if redis.call("HEXISTS", requests, id) == 1 then
  return 1 -- sent again, because our reply was lost
end
if not wanted() then
  return 0
end
redis.call("HSET", requests, id, request)
put_in_line(score, id)
return 1
