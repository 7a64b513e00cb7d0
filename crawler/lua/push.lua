-- Queue a request, and tell the resting nodes if there was none before.
-- ARGV: score, the lowest leaves first; request.
-- Reply: 1 queued, -1 this node takes no part.
local score, request = ARGV[3], ARGV[4]

if not takes_part() then
  return -1
end
redis.call("ZADD", requests, score, request)
if redis.call("ZCARD", requests) == 1 then
  redis.call("PUBLISH", news, "requests")
end
return 1
