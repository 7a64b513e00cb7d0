-- Part of `sync`: what a site's answers change.

-- Reads feedback from its record; nil: its numbers are impossible.
function read_feedback(text)
  if #text < @bytes(feedback) then return nil end
  local feedback = {}
  @feedback.(feedback) = struct.unpack('@format(feedback)', text)
  for _, number in pairs(feedback) do
    if not (number >= 0 and number < math.huge) then return nil end
  end
  local in_seconds = {
    'good_age', 'bad_age', 'answer_age', 'retry_after', 'quota_interval', 'start', 'most', 'down_after',
  }
  for _, part in ipairs(in_seconds) do
    feedback[part] = 1000 * feedback[part]
  end
  return feedback
end

-- Notifies the waiting nodes, except the caller, of what a policy has found. `finding`: the policy's name,
-- and the numbers of its finding. `is_for(node)`: whether to notify this node; nil: all.
local function notify_waiting(scope, finding, is_for)
  for_each_entry(scope, function(node, entry)
    local waits = node ~= NODE and waiting_at(entry) > 0
    if waits and (not is_for or is_for(node)) then notify(node, finding, name_of(scope.key)) end
  end)
end

@policies(feedback)

function apply_feedback(scope, feedback)
  local learned = scope.learned or nothing_learned()
  local own = scope.own
  local is_handled = false -- whether a policy handles the refusals
  scope.learned, scope.has_learned = learned, true
  local asked = math.min(feedback.retry_after, feedback.most) -- the pause that the site asks for; 0: none

  @include(shared/backoff)

  if feedback.good + feedback.errors + feedback.refused > 0 then own.failures = 0 end
  @hook(on_feedback)
  if feedback.good > 0 then
    recover()
    @hook(on_good)
  end
  if feedback.metered > 0 then
    local is_new = is_new_incident()
    is_handled = @hook(on_metered) or is_handled
  end
  if feedback.refused > 0 then
    begin_backoff('backoff_end')
    @hook(on_refused)
  elseif asked > 0 then
    hold_back(asked, NOW >= learned.backoff_end, 'backoff_end')
  end
  if asked > 0 then @hook(on_named_time) end
  if feedback.failed > 0 then
    own.failures = own.failures + feedback.failed
    local is_new = is_new_incident()
    @hook(on_failed)
  end
end
