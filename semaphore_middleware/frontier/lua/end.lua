-- Ends the crawl for all nodes: when what is queued is done, or at once.
-- KEYS: see shared/common.lua.
-- ARGV: 1 for at once.
-- Reply: "now" if it has ended, "later", or "none" if no run is under way.

@include(shared/common)

if not run_id or ended then
  return { 'none' }
end
write_clock()
stop_dead_nodes()
local is_over = not has_requests() and redis.call('EXISTS', working, claims) == 0
if next_number() == 1 or is_over then
  end_run()
  return { 'now' }
end
redis.call('HSET', run, 'ending', 1)
tell_hungry_nodes('requests')
return { 'later' }
