-- Part of `apply_feedback`: the working limit of an adaptive limit. It grows by addition and falls by
-- multiplication (Chiu and Jain, 1989): when the site refuses a request, and when its latency is well above
-- its usual one, as in TCP Vegas (Brakmo and Peterson, 1995). Means are of logarithms: a page that takes a
-- hundred times as long must not decide.

local WELL_ABOVE = math.log(1.5)
local FEW = 5 -- answers that are needed to find that the site is slow
local DRIFT = 0.02 -- share of a rise in latency by which the site's usual latency follows it
local AFTER_REFUSAL, AFTER_SLOWNESS, OF_REMEMBERED = 0.5, 0.85, 0.8

-- Starts a new round: only answers to requests that begin under this working limit count in it.
local function begin_round()
  learned.since, learned.samples, learned.sum = NOW, 0, 0
end

-- A crawl begins a little below the limit with which the last one of this site got on.
local function begin_working()
  local good = learned.held_limit
  learned.working, learned.steady = math.max(1, OF_REMEMBERED * good), good > 0 and 1 or 0
  if good > 0 then apply_working_limit(scope) end
end

local function shrink(share)
  if scope.force.adaptive == 0 then return end
  local used = math.min(learned.working, scope.force.concurrency)
  learned.working, learned.steady = math.max(1, used * share), 1
  apply_working_limit(scope)
  begin_round()
end

-- Doubles at first; once it has been too high for the site, grows by one in five rounds.
local function grow()
  local working = learned.steady == 1 and learned.working + 1 or learned.working * 2
  learned.working = math.min(working, scope.force.concurrency)
  apply_working_limit(scope)
end

-- How many answers make a round.
local function enough()
  return math.max(FEW, math.floor(learned.working) * (learned.steady == 1 and 5 or 2))
end

local function hear_latency()
  if scope.force.adaptive == 0 or NOW - report.good_age < learned.since then return end
  learned.samples, learned.sum = learned.samples + report.good, learned.sum + report.good * report.mean_log_ms
  local mean = learned.sum / learned.samples
  local slow = learned.base > 0 and mean > learned.base + WELL_ABOVE
  if slow and learned.samples >= FEW and learned.working >= 2 then return shrink(AFTER_SLOWNESS) end
  if learned.samples < enough() then return end
  -- If the site is slow with one request at a time, that is its usual latency.
  local is_usual = learned.base == 0 or slow or mean < learned.base
  learned.base = is_usual and mean or learned.base + DRIFT * (mean - learned.base)
  if scope.used >= scope.force.limit then -- else the limit was not reached
    learned.held_limit = learned.working
    grow()
  end
  begin_round()
end
