-- Leave the crawl. What the node has taken and not finished goes back to the queues.
-- KEYS: see shared/common.lua.
-- ARGV: the places of finished requests.
-- Reply: nothing.
while has_arguments() do
  finish(next_argument())
end
stop_working(node)
notify_idle_nodes()
redis.call("ZREM", nodes, node)
redis.call("PUBLISH", channel, "left") -- it may have been the last one that worked
return {}
