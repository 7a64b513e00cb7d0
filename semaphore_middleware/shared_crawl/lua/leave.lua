-- Leaves the crawl. The node's unfinished requests go back to the queues. A node can also leave if the reply
-- to the call that joined this run was lost: it works, but does not know the run.
-- KEYS: see shared/common.lua.
-- ARGV: the node's stats, see `write_stats`, which count even if the run is over, unless it was dropped; the
-- finished requests, see `finish_all`; both of the run that the node knows.
-- Reply: nothing.

@include(shared/common)

if redis.call('HEXISTS', run, 'dropped') == 1 then return {} end
local is_known = run_id == joined_run
if is_known then
  write_stats()
  if ended then redis.call('PEXPIRE', stats, END_KEPT_MS) end
end
if ended or not (is_known or redis.call('ZSCORE', working, node)) then return {} end

write_clock()
if is_known then finish_all() end
stop_working(node, put_back)
redis.call('ZREM', nodes, node)
redis.call('ZREM', hungry, node)
make_offer() -- this may have been the last node at work
return {}
