-- Mark the node as working, or renew its mark.
-- ARGV: lease of the mark (ms); ids that the node has finished.
-- Reply: none.
local lease_ms, first_done = tonumber(ARGV[4]), 5

finish(first_done)
work_for(lease_ms)
