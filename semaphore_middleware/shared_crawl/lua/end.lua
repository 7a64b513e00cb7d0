-- Ends the crawl for all nodes: when the queues are empty, or at once, or at once without a trace. Then if
-- nodes take part, the end is kept for an hour: otherwise they would begin the crawl again.
-- KEYS: see shared/common.lua.
-- ARGV: "later", "now" or "forget".
-- Reply: "now" if it has ended; "later"; "none" if no run is under way, or there is nothing to forget; or
-- "version" with the run's version, if it differs and the run should not be forgotten.

@include(shared/common)

local how = next_argument()
if not run_id or (ended and how ~= 'forget') then return { 'none' } end
if how ~= 'forget' and is_of_other_version() then return { 'version', version_of_run or '' } end
if how == 'forget' then
  -- The crawl's clock stops while no node calls: the wall clock gives the time since then, as in counts.py.
  -- Nodes that are stopping are in `working` only.
  for _, key in ipairs({ nodes, working }) do
    redis.call('ZREMRANGEBYSCORE', key, '-inf', clock + math.max(0, WALL - wall))
  end
  local has_nodes = redis.call('EXISTS', nodes, working) > 0
  redis.call('HDEL', run, 'timed')
  redis.call('UNLINK', aside, failed, budgets, stats)
  end_run()
  redis.call('HSET', run, 'dropped', 1)
  redis.call('PEXPIRE', run, has_nodes and HOUR or 0)
  return { 'now' }
end
write_clock()
stop_dead_nodes()
if how == 'now' or not has_requests() and redis.call('EXISTS', working, claims) == 0 then
  end_run()
  return { 'now' }
end
redis.call('HSET', run, 'ending', 1)
notify_waiting_nodes()
return { 'later' }
