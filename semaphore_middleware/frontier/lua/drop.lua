-- Ends the crawl for all nodes, done or not, and forgets all of it. While nodes are there, that it has ended
-- is kept for an hour: else they would begin it again.
-- KEYS: see shared/common.lua.
-- ARGV: none of its own.
-- Reply: 1 if there was such a crawl, else 0.

@include(shared/common)

local LAST_CALLS_MS = 3600 * 1000

if not run_id then
  return { 0 }
end
-- The crawl's clock stands still while nobody calls: of this silence the wall clock tells, as in counts.py.
local silent_ms = math.max(0, wall_now - (wall or 0))
redis.call('ZREMRANGEBYSCORE', nodes, '-inf', (clock or 0) + silent_ms)
redis.call('ZREM', nodes, node)
local has_nodes = redis.call('EXISTS', nodes) == 1
redis.call('HDEL', run, 'timed')
redis.call('UNLINK', aside, failed, budgets, stats)
end_run()
if has_nodes then
  redis.call('PEXPIRE', run, LAST_CALLS_MS)
else
  redis.call('UNLINK', run)
end
return { 1 }
