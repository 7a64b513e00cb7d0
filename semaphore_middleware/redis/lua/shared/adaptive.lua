-- Put in front of `report`: the working limit of a site whose limit is adaptive.
-- Keys, arguments and reply: see the prelude.
-- It grows by addition and falls by multiplication (Chiu and Jain, 1989). It falls when the site
-- refuses a request, and when its latency is well above its usual one, as in TCP Vegas (Brakmo and
-- Peterson, 1995). Means are of logarithms: a page that takes a hundred times as long must not decide.

local WELL_ABOVE = math.log(1.5)
local FEW = 5 -- answers that are needed to find that the site is slow
local DRIFT = 0.02 -- share of a rise in latency by which the site's usual latency follows it
local AFTER_REFUSAL, AFTER_SLOWNESS = 0.5, 0.85

-- Starts a new round: only answers to requests that begin under this working limit count in it.
local function begin_anew(scope)
  learn(scope, 'since', scope.now)
  learn(scope, 'samples', 0)
  learn(scope, 'sum', 0)
end

local function shrink(scope, share)
  if not scope.in_force.adaptive then return end
  local used = math.min(scope.site.working, scope.in_force.most)
  learn(scope, 'working', math.max(1, used * share))
  learn(scope, 'steady', 1)
  apply_working_limit(scope)
  begin_anew(scope)
end

-- Doubles at first; once it has been too high for the site, grows by one in five rounds.
local function grow(scope)
  local working = scope.site.working
  working = scope.site.steady == 1 and working + 1 or working * 2
  learn(scope, 'working', math.min(working, scope.in_force.most))
  apply_working_limit(scope)
end

-- How many answers make a round.
local function enough(site)
  return math.max(FEW, math.floor(site.working) * (site.steady == 1 and 5 or 2))
end

local function hear_latency(scope, report)
  local site = scope.site
  if not scope.in_force.adaptive or scope.now - report.good_age < site.since then return end
  learn(scope, 'samples', site.samples + report.good)
  learn(scope, 'sum', site.sum + report.good * report.latency)
  local mean = site.sum / site.samples
  local slow = site.base > 0 and mean > site.base + WELL_ABOVE
  if slow and site.samples >= FEW and site.working >= 2 then return shrink(scope, AFTER_SLOWNESS) end
  if site.samples < enough(site) then return end
  -- If the site is slow with one request at a time, that is its usual latency.
  if site.base == 0 or slow or mean < site.base then
    learn(scope, 'base', mean)
  else
    learn(scope, 'base', site.base + DRIFT * (mean - site.base))
  end
  if scope.used >= scope.in_force.limit then grow(scope) end -- else the limit was not reached
  begin_anew(scope)
end
