-- Part of `apply_feedback`: the pauses of a site. An incident counts once, however many requests it affects:
-- all that began before the backoff belong to it.

-- Notifies all nodes that hold permits: a request that has not started yet should not.
local function warn_holders()
  for_each_entry(scope, function(node, entry)
    if held_by(entry) > 0 then
      notify(node, 'backoff', learned.paused_at, learned.pause_length, name_of(scope.key))
    end
  end)
end

-- `ends`: the field of its end: `backoff_end`, or a policy's own.
local function hold_back(pause, is_new, ends)
  local begins = is_new or NOW >= pause_end(learned) -- also for a late refusal of the same incident
  if begins then
    scope.backoff_begun, learned.paused_at, learned.pause_length = pause, WALL, 0
  end
  learned[ends] = math.max(learned[ends], NOW + pause)
  local length = math.ceil(WALL - learned.paused_at + learned[ends] - NOW)
  learned.pause_length = math.max(learned.pause_length, length)
  if begins then warn_holders() end
end

-- NOW is rounded down: a request that begins as the last pause ends is of a new incident.
local function is_new_incident()
  return NOW + 1 - feedback.bad_age >= pause_end(learned)
end

local function begin_backoff(ends)
  local is_new, pause = is_new_incident(), asked
  if is_new then
    if pause == 0 then
      local doubled = math.max(feedback.start, 2 * learned.backoff)
      pause = math.min(feedback.most, doubled) -- promise: a backoff ends
      learned.backoff = pause
    end
    @hook(on_incident)
  end
  if pause > 0 then hold_back(pause, is_new, ends) end
end

-- As many answers as a quarter of the limit halve the pause that the next incident begins with: a site that
-- answers most requests and refuses the rest must not end up with the longest pause. If the limit is far from
-- reached, the permits in use and waited for count in its place. Where starts are spaced, that would be too
-- slow: one answer takes back four incidents.
local function recover()
  learned.answered = math.max(learned.answered, NOW - feedback.good_age)
  local halving = is_paced(scope) and 1 / 4 or math.max(1, math.min(scope.effective.limit, scope.wanted) / 4)
  local backoff = learned.backoff * 0.5 ^ (feedback.good / halving)
  learned.backoff = backoff >= feedback.start / 2 and backoff or 0
end
