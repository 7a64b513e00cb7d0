-- Part of `promote`: policies. A line with `@hook(moment)` is written once for each policy whose file has a
-- function of this moment: `local function <policy>_<moment>(...)`. It calls this function with the names of
-- its parameters. `learned` is what is known of the site: what a policy keeps there is read by this policy
-- alone. The moments:
--     forget(learned)                        an operator ends what it has found
--     on_good(learned, scope, report)        feedback has good answers,
--     on_refused(learned, scope, report)       has refusals,
--     on_named_time(learned, scope, report)    names a time until which the site wants no requests
--     shut_by(learned)                       the reason, if requests fail at once
--     room(learned)                          how many may hold a permit, and the reason; nil: no matter
--     wants_feedback(learned)                whether nodes should report ordinary answers, too
--     find(learned, found)                   puts its numbers into the record `findings`

@policies(lua)

local function smaller(most, reason, room, its_reason)
  if room and room <= most then return room, its_reason end
  return most, reason
end

-- The smallest room, of `most` and of what policies leave, and its reason.
local function least_room(learned, most, reason)
  most, reason = smaller(most, reason, @hook(room))
  return most, reason
end

-- The record `findings` of all policies, packed.
local function pack_findings(learned)
  if not learned then return struct.pack('@format(findings)', @zeros(findings)) end
  local found = { @zero(findings) }
  @hook(find)
  return struct.pack('@format(findings)', @found.(findings))
end
