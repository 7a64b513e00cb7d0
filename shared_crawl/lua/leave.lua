-- Leaves the crawl. The node's unfinished requests go back to the queues.
-- KEYS: see shared/common.lua.
-- ARGV: the node's numbers, see `write_stats`, even if the run is over; the finished requests, see
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
make_offer() -- this may have been the last node at work
return {}
