-- Part of `sync`: what a site's answers change.

-- Feedback, from its record; nil: it makes no sense.
local function read_feedback(text)
  if #text < @bytes(feedback) then return nil end
  local report = {}
  @report.(feedback) = struct.unpack('@format(feedback)', text)
  for _, number in pairs(report) do
    if not (number >= 0 and number < math.huge) then return nil end
  end
  for _, part in ipairs({ 'good_age', 'bad_age', 'retry_after', 'start', 'most', 'down_after' }) do
    report[part] = 1000 * report[part] -- nodes say them in seconds
  end
  return report
end

local function apply_feedback(scope, report)
  local learned = scope.learned or nothing_learned()
  scope.learned, scope.has_learned = learned, true

  @include(shared/adaptive)
  @include(shared/backoff)
  @include(shared/down)

  if scope.force.adaptive == 1 and learned.working == 0 then begin_working() end
  if report.good + report.errors + report.refused > 0 then -- it is there
    learned.failures, learned.is_down = 0, 0
  end
  if report.good > 0 then
    recover()
    hear_latency()
  end
  local asked = math.min(report.retry_after, report.most)
  if report.refused > 0 then
    begin_backoff(asked)
  elseif asked > 0 then
    hold_back(asked, NOW >= learned.backoff_end)
  end
  if report.failed > 0 then hear_failures(asked) end
end
