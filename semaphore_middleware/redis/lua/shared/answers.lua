-- Put in front of `report`: backoff, and what else a site's answers change.
-- Keys, arguments and reply: see the prelude.
-- Feedback is nine numbers, as below. An incident counts once, however many requests it affects: all
-- that began before the backoff belong to it.

local REPORT = {
  'good', 'latency', 'good_age', -- answers, the mean of their latencies' logarithms, the age of the oldest
  'failed', 'refused', 'bad_age', -- requests without answer, refused ones, the age of the youngest of both
  'retry_after', -- the longest pause that the site asked for; 0: it did not say
  'start', 'most', -- the first pause if it did not say, and the longest
}
local IN_A_ROW = 3 -- failures that count as a refusal

local function read_report(text)
  local report, values = {}, string.gmatch(text, '%S+')
  for _, part in ipairs(REPORT) do
    report[part] = tonumber(values())
  end
  return report
end

-- Notifies all holders: a request that has not started yet should not.
local function warn_holders(scope)
  for _, id in ipairs(redis.call('ZRANGE', scope.held, 0, -1)) do
    tell(id, 'quiet ' .. number_of(id))
  end
end

local function fall_quiet(scope, report)
  local pause = math.min(report.retry_after, report.most)
  if scope.now - report.bad_age >= scope.site.quiet then
    if pause == 0 then
      pause = math.min(report.most, math.max(report.start, 2 * scope.site.backoff))
      learn(scope, 'backoff', pause)
    end
    scope.incident = pause
    warn_holders(scope)
    shrink(scope, AFTER_REFUSAL)
  end
  learn(scope, 'quiet', math.max(scope.site.quiet, scope.now + pause))
end

-- As many answers as a quarter of the limit halve the pause that the next incident begins with: a site
-- that answers most requests and refuses the rest must not end up with the longest pause. If the limit
-- is far from reached, the permits in use and waited for count in its place.
local function recover(scope, report)
  learn(scope, 'failures', 0)
  if scope.site.backoff > 0 then
    local most = math.min(scope.in_force.limit, scope.wanted)
    local backoff = scope.site.backoff * 0.5 ^ (report.good / math.max(1, most / 4))
    learn(scope, 'backoff', backoff >= report.start / 2 and backoff or 0)
  end
end

local function hear_answers(scope)
  local report = read_report(scope.report)
  if report.good > 0 then
    recover(scope, report)
    hear_latency(scope, report)
  end
  learn(scope, 'failures', scope.site.failures + report.failed)
  if report.refused > 0 or (report.failed > 0 and scope.site.failures >= IN_A_ROW) then
    fall_quiet(scope, report)
  end
end
