-- Stop working, for lack of requests. If no node works and nothing is queued, the crawl ends.
-- KEYS: see shared/common.lua.
-- ARGV: the places of finished requests. What else the node has taken it does not know of, because a
-- reply was lost; it goes back to the queues.
-- Reply: "more" if requests are queued, "wait" if other nodes work, else "done"; and for "wait", the
-- time after which to ask again (ms), when the first of their leases ends.
while has_arguments() do
  finish(next_argument())
end
stop_working(node)
stop_dead_nodes()
notify_idle_nodes()
if redis.call("EXISTS", sites) == 1 then
  return { "more", 0 }
end
local first_lease_end = redis.call("ZRANGE", working, 0, 0, "WITHSCORES")[2]
if first_lease_end then
  return { "wait", math.ceil(first_lease_end - now) }
end
end_run()
return { "done", 0 }
