-- Part of `sync`: what a site's answers change, backoff above all.
-- Feedback is nine numbers, as below. An incident counts once, however many requests it affects: all
-- that began before the backoff belong to it.

local FEEDBACK = {
  'good', 'latency', 'good_age', -- answers, the mean of their latencies' logarithms, the age of the oldest
  'failed', 'refused', 'bad_age', -- requests without answer, refused ones, the age of the youngest of both
  'retry_after', -- the longest pause that the site asked for; 0: it did not say
  'start', 'longest', -- the first pause if it did not say, and the longest of all
}
local IN_A_ROW = 3 -- failures that count as a refusal

local function read_feedback(text)
  local report, values = {}, string.gmatch(text, '%S+')
  for _, part in ipairs(FEEDBACK) do
    report[part] = tonumber(values())
  end
  return report
end

-- Notifies all nodes that hold permits: a request that has not started yet should not.
local function warn_holders(scope)
  for_each_account(scope, function(node, account)
    if held_by(account) > 0 then notify(node, 'backoff', name_of(scope.key)) end
  end)
end

local function begin_backoff(scope, report)
  local pause = math.min(report.retry_after, report.longest)
  if NOW - report.bad_age >= scope.learned.backoff_end then
    if pause == 0 then
      pause = math.min(report.longest, math.max(report.start, 2 * scope.learned.backoff))
      set_learned(scope, 'backoff', pause)
    end
    scope.backoff_begun = pause
    warn_holders(scope)
    shrink(scope, AFTER_REFUSAL)
  end
  set_learned(scope, 'backoff_end', math.max(scope.learned.backoff_end, NOW + pause))
end

-- As many answers as a quarter of the limit halve the pause that the next incident begins with: a site
-- that answers most requests and refuses the rest must not end up with the longest pause. If the limit
-- is far from reached, the permits in use and waited for count in its place.
local function recover(scope, report)
  set_learned(scope, 'failures', 0)
  if scope.learned.backoff > 0 then
    local most = math.min(scope.in_force.limit, scope.wanted)
    local backoff = scope.learned.backoff * 0.5 ^ (report.good / math.max(1, most / 4))
    set_learned(scope, 'backoff', backoff >= report.start / 2 and backoff or 0)
  end
end

local function hear_feedback(scope, text)
  local report = read_feedback(text)
  if not report.longest then return end -- it makes no sense
  if report.good > 0 then
    recover(scope, report)
    hear_latency(scope, report)
  end
  set_learned(scope, 'failures', scope.learned.failures + report.failed)
  if report.refused > 0 or (report.failed > 0 and scope.learned.failures >= IN_A_ROW) then
    begin_backoff(scope, report)
  end
end
