-- The node has no work left. Who finds that nobody has any ends the crawl for all.
-- ARGV: none.
-- Reply: "more" requests are queued, "wait" for those who work, or "done".
local function drop_the_dead()
  redis.call("ZREMRANGEBYSCORE", working, "-inf", now_ms())
end

if not takes_part() then
  return "done"
end
redis.call("ZREM", working, node)
drop_the_dead()
if redis.call("ZCARD", requests) > 0 then
  return "more"
end
if redis.call("ZCARD", working) > 0 then
  return "wait"
end
redis.call("DEL", requests, seen, working, nodes)
redis.call("PUBLISH", news, "done")
return "done"
