-- Leaves the crawl. What the node has taken and not finished goes back to the queues.
-- KEYS: see shared/common.lua.
-- ARGV: the finished requests, see `finish_all`.
-- Reply: nothing.

@include(shared/common)
@include(shared/joined)

finish_all()
stop_working(node, put_back)
notify_idle_nodes()
redis.call('ZREM', nodes, node)
redis.call('PUBLISH', channel, 'left') -- it may have been the last one that worked
return {}
