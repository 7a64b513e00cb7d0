-- Note a request's fingerprint, unless it is known or the crawl has all the pages it may have.
-- ARGV: fingerprint; most fingerprints, 0 for no limit.
-- Reply: 1 new, 0 not wanted, -1 this node takes no part.
local fingerprint, most = ARGV[3], tonumber(ARGV[4])

if not takes_part() then
  return -1
end
if most > 0 and redis.call("SCARD", seen) >= most then
  return 0
end
return redis.call("SADD", seen, fingerprint)
