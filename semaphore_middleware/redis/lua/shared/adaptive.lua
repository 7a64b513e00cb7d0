-- Part of `sync`: the working limit of a site whose limit is adaptive.
-- It grows by addition and falls by multiplication (Chiu and Jain, 1989). It falls when the site
-- refuses a request, and when its latency is well above its usual one, as in TCP Vegas (Brakmo and
-- Peterson, 1995). Means are of logarithms: a page that takes a hundred times as long must not decide.

local WELL_ABOVE = math.log(1.5)
local FEW = 5 -- answers that are needed to find that the site is slow
local DRIFT = 0.02 -- share of a rise in latency by which the site's usual latency follows it
local AFTER_REFUSAL, AFTER_SLOWNESS = 0.5, 0.85

-- Starts a new round: only answers to requests that begin under this working limit count in it.
local function begin_round(scope)
  set_learned(scope, 'since', NOW)
  set_learned(scope, 'samples', 0)
  set_learned(scope, 'sum', 0)
end

local function shrink(scope, share)
  if not scope.in_force.adaptive then return end
  local used = math.min(scope.learned.working, scope.in_force.concurrency)
  set_learned(scope, 'working', math.max(1, used * share))
  set_learned(scope, 'steady', 1)
  apply_working_limit(scope)
  begin_round(scope)
end

-- Doubles at first; once it has been too high for the site, grows by one in five rounds.
local function grow(scope)
  local working = scope.learned.working
  working = scope.learned.steady == 1 and working + 1 or working * 2
  set_learned(scope, 'working', math.min(working, scope.in_force.concurrency))
  apply_working_limit(scope)
end

-- How many answers make a round.
local function enough(learned)
  return math.max(FEW, math.floor(learned.working) * (learned.steady == 1 and 5 or 2))
end

local function hear_latency(scope, report)
  local learned = scope.learned
  if not scope.in_force.adaptive or NOW - report.good_age < learned.since then return end
  set_learned(scope, 'samples', learned.samples + report.good)
  set_learned(scope, 'sum', learned.sum + report.good * report.latency)
  local mean = learned.sum / learned.samples
  local slow = learned.base > 0 and mean > learned.base + WELL_ABOVE
  if slow and learned.samples >= FEW and learned.working >= 2 then return shrink(scope, AFTER_SLOWNESS) end
  if learned.samples < enough(learned) then return end
  -- If the site is slow with one request at a time, that is its usual latency.
  if learned.base == 0 or slow or mean < learned.base then
    set_learned(scope, 'base', mean)
  else
    set_learned(scope, 'base', learned.base + DRIFT * (mean - learned.base))
  end
  if scope.used >= scope.in_force.limit then grow(scope) end -- else the limit was not reached
  begin_round(scope)
end
