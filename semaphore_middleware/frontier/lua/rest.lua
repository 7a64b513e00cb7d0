-- The node has no work left. Who finds that nobody has any ends the crawl for all.
-- ARGV: ids that the node has finished. What is in its hand besides, it never heard of: the reply
-- was lost, so it goes back.
-- Reply: "more" requests are queued, "wait" for those who work, or "done"; ms to wait at most.
local first_done = 4

finish_all_from(first_done)
stop(node)
stop_the_dead()
tell_the_resting()
if redis.call("EXISTS", sites) == 1 then
  return {"more", 0}
end
local oldest_mark = redis.call("ZRANGE", working, 0, 0, "WITHSCORES")[2]
if oldest_mark then
  return {"wait", oldest_mark - now_ms()}
end
end_run()
return {"done", 0}
