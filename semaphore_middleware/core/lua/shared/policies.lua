-- Part of `promote`: policies. Each file of theirs calls `policy` with functions for some of these moments.
-- `learned` is what is known of the site: what a policy keeps there is read by this policy alone.
--     forget(learned)                        an operator ends what it has found
--     on_good(learned, scope, report)        feedback has good answers,
--     on_refused(learned, scope, report)       has refusals,
--     on_named_time(learned, scope, report)    names a time until which the site wants no requests
--     shut_by(learned)                       the reason, if requests fail at once
--     room(learned)                          how many may hold a permit, and the reason; nil: no matter
--     wants_feedback(learned)                whether nodes should report ordinary answers, too
--     find(learned, found)                   puts its numbers into the record `findings`

local HOOKS = {} -- of each moment, the policies' functions

local function policy(hooks)
  for moment, hook in pairs(hooks) do
    HOOKS[moment] = HOOKS[moment] or {}
    table.insert(HOOKS[moment], hook)
  end
end

-- Calls all policies.
local function tell(moment, ...)
  for _, hook in ipairs(HOOKS[moment] or {}) do
    hook(...)
  end
end

-- The first answer of a policy that is not nil or false.
local function ask(moment, learned)
  for _, hook in ipairs(HOOKS[moment] or {}) do
    local answer = hook(learned)
    if answer then return answer end
  end
end

-- The smallest room, of `most` and of what policies leave, and its reason.
local function least_room(learned, most, reason)
  for _, hook in ipairs(HOOKS.room or {}) do
    local room, its_reason = hook(learned)
    if room and room <= most then most, reason = room, its_reason end
  end
  return most, reason
end

-- The record `findings` of all policies, packed.
local function pack_findings(learned)
  local found = { @zero(findings) }
  if learned then tell('find', learned, found) end
  return struct.pack('@format(findings)', @found.(findings))
end

@policies(lua)
