-- Leaves the crawl. What the node has taken and not finished goes back to the queues.
-- KEYS: see shared/common.lua.
-- ARGV: what the node has counted, see `write_stats`: also if the run is over; the finished requests, see
-- `finish_all`.
-- Reply: nothing.

@include(shared/common)

if run_id == joined_run then
  write_stats()
  if ended then redis.call('PEXPIRE', stats, END_KEPT_MS) end
end

@include(shared/joined)

finish_all()
stop_working(node, put_back)
redis.call('ZREM', nodes, node)
redis.call('ZREM', hungry, node)
make_offer() -- it may have been the last one that worked
return {}
