-- Renews the lease of a node whose event loop is stalled: it takes no requests, and acknowledges none.
-- KEYS: see shared/common.lua.
-- ARGV: see there.
-- Reply: 1 if the node works; otherwise 0, and nothing is changed.

@include(shared/common)

if run_id ~= joined_run or ended or not redis.call('ZSCORE', working, node) then return 0 end
write_clock()
if redis.call('ZSCORE', nodes, node) then renew_presence() end
renew_lease()
return 1
