-- Stops the node's work, for lack of requests. If no node works and nothing is queued, the crawl ends.
-- KEYS: see shared/common.lua.
-- ARGV: the finished requests, see `finish_all`. What else the node has taken it does not know of, because a
-- reply was lost; it goes back to the queues.
-- Reply: "more" if requests are queued that may be taken, "wait" if other nodes work, else "done"; for
-- "wait", the time after which to ask again (ms), when the first of their leases ends; the data of each
-- request that is set aside now.

@include(shared/common)
@include(shared/joined)

finish_all()
stop_working(node, put_back)
stop_dead_nodes()
notify_idle_nodes()
if redis.call('EXISTS', sites) == 1 and pages_left() > 0 then
  return { 'more', 0, set_aside }
end
local first_lease_end = redis.call('ZRANGE', working, 0, 0, 'WITHSCORES')[2]
if first_lease_end then
  return { 'wait', math.ceil(first_lease_end - now), set_aside }
end
end_run()
return { 'done', 0, set_aside }
