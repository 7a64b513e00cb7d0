-- Included by `sync`, `idle`, `leave` and `take_starts`, after common.lua: they need a run joined by the
-- node.
-- Reply: if that run is over, "ended", "empty" or "lost"; then nothing is changed.

if run_id ~= joined_run or ended then
  if joined_run ~= run_id and joined_run ~= previous_run then return { 'lost' } end
  return { redis.call('HGET', run, 'empty') == joined_run and 'empty' or 'ended' }
end
write_clock()
renew_presence()

