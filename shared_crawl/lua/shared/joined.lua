-- Included by `sync`, `idle`, `leave` and `take_starts`, after common.lua: they need a run joined by the
-- node.
-- Reply: if that run is over, "over", and "lost", or "undone" or "ended" with what is `missing`; then nothing
-- is changed.

if run_id ~= joined_run or ended then
  if joined_run ~= run_id and joined_run ~= previous_run then return { 'over', 'lost' } end
  return { 'over', redis.call('HGET', run, 'undone') == joined_run and 'undone' or 'ended', missing() }
end
write_clock()
renew_presence()

