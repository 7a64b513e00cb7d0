-- Sent in front of `sync`, `idle` and `leave`, behind common.lua: they need a run that the node has joined.
-- Reply: if that run is over, "ended" or "lost"; then nothing is changed.

if run_id ~= joined_run then
  return { previous_run == joined_run and 'ended' or 'lost' }
elseif ended then
  return { 'ended' }
end
write_clock()
renew_presence()

