-- Sent in front of every script but `join`, behind common.lua.
-- Reply: if the run that the node has joined is over, "ended" or "lost", and nothing is changed.
if run_id ~= joined_run then
  return { previous_run == joined_run and 'ended' or 'lost' }
elseif ended then
  return { 'ended' }
end
write_clock()
renew_presence()

