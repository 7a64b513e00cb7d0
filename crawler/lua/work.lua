-- Mark the node as working, or renew its mark.
-- ARGV: lease of the mark (ms).
-- Reply: none.
local lease_ms = tonumber(ARGV[3])

if takes_part() then
  work_for(lease_ms)
end
