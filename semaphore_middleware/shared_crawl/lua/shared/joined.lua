-- Included by `sync`, `idle` and `take_starts`, after common.lua: they need a run that the node has joined.
-- Reply: if that run is over, "over", and "lost", or "undone" or "ended" with the numbers of `missing`; then
-- nothing is changed.

if run_id ~= joined_run or ended then
  if joined_run ~= run_id and joined_run ~= previous_run then return { 'over', 'lost' } end
  local is_undone = redis.call('HGET', run, 'undone') == joined_run
  local dead_letters_now, failed_now, left, lost = missing()
  if joined_run ~= run_id then lost = tonumber(redis.call('HGET', run, 'previous_lost') or 0) end
  return { 'over', is_undone and 'undone' or 'ended', dead_letters_now, failed_now, left, lost }
end
write_clock()
renew_presence()
