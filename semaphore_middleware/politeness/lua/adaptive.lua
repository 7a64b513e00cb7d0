-- Adaptive limits: as many requests at a time as the site can take, at most the limit's `concurrency`. The
-- working limit grows by addition and falls by multiplication (Chiu and Jain, 1989): when the site refuses a
-- request, and when its latency is well above its usual one, as in TCP Vegas (Brakmo and Peterson, 1995).
-- Means are of logarithms, so that one very slow page does not decide. In `learned` it keeps:
--     working_limit  not rounded; 0: none yet
--     is_steady      1 once it has been too high, and so grows slowly
--     held_limit     the last that a round of answers has confirmed; remembered
--     usual_latency  of the site, as the logarithm of milliseconds; 0: none
--     round_since    when the present round began: only requests that begin under this working limit count
--     round_answers  how many of these have had answers
--     round_sum      of the logarithms of their latencies

-- An adaptive limit starts low, to measure the site's usual latency.
local function adaptive_on_limit(scope)
  local effective = scope.effective
  if effective.adaptive == 0 then return end
  local working = math.floor(scope.learned and scope.learned.working_limit or 0)
  effective.limit = math.min(effective.concurrency, math.max(1, working))
  scope.lowered_by, scope.wants_feedback = @reason(adaptive), true
end

local function adaptive_on_idle(learned)
  if learned.held_limit > 0 then return REMEMBERED end
  return learned.working_limit > 0 and MEMORY or 0
end

local function adaptive_remember(learned, before)
  learned.held_limit = before.held_limit
end

-- Section feedback

local WELL_ABOVE = math.log(1.5)
local FEW = 5 -- answers that are needed to find that the site is slow
local DRIFT = 0.02 -- share of a rise in latency by which the site's usual latency follows it
local AFTER_REFUSAL, AFTER_SLOWNESS, OF_REMEMBERED = 0.5, 0.85, 0.8

local function begin_round(learned)
  learned.round_since, learned.round_answers, learned.round_sum = NOW, 0, 0
end

local function shrink(learned, scope, share)
  local used = math.min(learned.working_limit, scope.effective.concurrency)
  learned.working_limit, learned.is_steady = math.max(1, used * share), 1
  adaptive_on_limit(scope)
  begin_round(learned)
end

-- Doubles at first; once it has been too high for the site, grows by one in five rounds.
local function grow(learned, scope)
  local working = learned.is_steady == 1 and learned.working_limit + 1 or learned.working_limit * 2
  learned.working_limit = math.min(working, scope.effective.concurrency)
  adaptive_on_limit(scope)
end

-- How many answers make a round.
local function round_of(learned)
  return math.max(FEW, math.floor(learned.working_limit) * (learned.is_steady == 1 and 5 or 2))
end

-- A crawl begins a little below the last limit that held in earlier crawls of this site.
local function adaptive_on_feedback(learned, scope)
  if scope.effective.adaptive == 0 or learned.working_limit > 0 then return end
  local good = learned.held_limit
  learned.working_limit, learned.is_steady = math.max(1, OF_REMEMBERED * good), good > 0 and 1 or 0
  adaptive_on_limit(scope)
end

local function adaptive_on_good(learned, scope, feedback)
  if scope.effective.adaptive == 0 or NOW - feedback.good_age < learned.round_since then return end
  local answers = learned.round_answers + feedback.good
  learned.round_answers = answers
  learned.round_sum = learned.round_sum + feedback.good * feedback.mean_log_ms
  local mean, usual = learned.round_sum / answers, learned.usual_latency
  local is_slow = usual > 0 and mean > usual + WELL_ABOVE
  if is_slow and answers >= FEW and learned.working_limit >= 2 then
    return shrink(learned, scope, AFTER_SLOWNESS)
  end
  if answers < round_of(learned) then return end
  -- If the site is slow even with one request at a time, that is its usual latency.
  local is_usual = usual == 0 or is_slow or mean < usual
  learned.usual_latency = is_usual and mean or usual + DRIFT * (mean - usual)
  if scope.used >= scope.effective.limit then -- otherwise the limit was not reached
    learned.held_limit = learned.working_limit
    grow(learned, scope)
  end
  begin_round(learned)
end

local function adaptive_on_incident(learned, scope, is_handled)
  if scope.effective.adaptive == 1 and not is_handled then shrink(learned, scope, AFTER_REFUSAL) end
end
