-- Shared by all scripts that grant: the gap between starts that a site's refusals have taught, where the site
-- meters them: a rate of burst 1 that the server sets itself.
-- When such a site begins to refuse, nothing is left of what it allows. So from one such moment to a later
-- one it has answered as many requests as it allows in that time: this is a span. It is judged when the pause
-- is over: until then requests that began before are still reported.

local OF_PAUSE = 5000 -- of a pause, what counts in a span (ms): a site saves up for a while, and no longer
local FEW_STARTS = 10 -- a span with fewer goes on
local OFTEN, TOO_OFTEN = 0.05, 0.02 -- the share of refusals that calls for a gap, and for a wider one
local WIDER, UNDONE, NARROWER = 1.02, 1.05, 0.92
local ENOUGH = 10 -- good answers until the next step
local CALM, NEXT_STEP = 20000, 3000 -- times from a refusal to the first step, and between steps (ms)
local LEAST = 5 -- a narrower gap is none (ms)

-- An operator who has set a pace knows better.
local function has_set_pace(scope)
  local force = scope.force
  return force ~= scope and (rawget(force, 'delay') or rawget(force, 'interval')) ~= nil
end

local function gap_of(scope)
  local learned = scope.learned
  return learned and learned.gap > 0 and not has_set_pace(scope) and learned.gap or 0
end

local function set_gap(learned, gap)
  if learned.quota_gap > 0 then gap = math.min(gap, learned.quota_gap) end
  learned.gap, learned.held_gap, learned.steps = gap, gap, 0
end

local function forget_gap(learned)
  learned.gap, learned.held_gap, learned.quota_gap, learned.steps = 0, 0, 0, 0
  learned.refused_at, learned.is_refused, learned.span_since = 0, 0, 0
end

local function widen(learned, starts)
  local answered = starts - learned.span_refused
  local often = learned.gap > 0 and TOO_OFTEN or OFTEN
  local span = learned.refused_at - learned.span_since
  if answered == 0 then
    return
  elseif learned.steps > 0 then -- the site's rate is between the last two steps
    local mean = (span - learned.span_pauses) / answered
    set_gap(learned, math.max(learned.gap, UNDONE * math.min(learned.held_gap, mean)))
  elseif learned.span_refused > often * starts then
    local mean = (span - learned.span_pauses + learned.span_counted) / answered
    set_gap(learned, math.max(learned.gap, WIDER * mean))
  end
end

-- Before the first start after a pause.
local function judge_span(scope)
  local learned = scope.learned
  local starts = scope.started - learned.span_started
  learned.is_refused, scope.has_learned = 0, true
  learned.calm_until = NOW + (learned.gap > 0 and CALM or CALM / 2) -- the first gap is a rough one
  if learned.span_since == 0 or starts >= FEW_STARTS then
    if learned.span_since > 0 then widen(learned, starts) end
    learned.span_since, learned.span_pauses, learned.span_counted = learned.refused_at, 0, 0
    learned.span_started, learned.span_refused = scope.started, 0
  elseif learned.steps > 0 then
    set_gap(learned, learned.held_gap)
  end
end

-- `is_new`: an incident begins.
local function hear_metered(learned, report, is_new)
  learned.span_refused = learned.span_refused + report.metered
  if report.quota_gap > 0 then learned.quota_gap = report.quota_gap end
  if not is_new then return end
  local pause = math.max(0, learned.backoff_end - learned.refused_at) -- of the last incident
  learned.span_pauses = learned.span_pauses + pause
  learned.span_counted = learned.span_counted + math.min(pause, OF_PAUSE)
  learned.refused_at, learned.is_refused, learned.clean = NOW, 1, 0
  if learned.gap == 0 and learned.quota_gap > 0 then set_gap(learned, learned.quota_gap) end
end

-- Good answers, while requests wait though there is room for them, narrow it step by step, until it is gone.
local function hear_clean(scope, learned, answers)
  if scope.waiting == 0 or scope.held >= scope.force.limit then return end
  learned.clean = learned.clean + answers
  if learned.clean < ENOUGH or NOW < learned.calm_until then return end
  learned.calm_until, learned.clean = NOW + NEXT_STEP, 0
  learned.held_gap, learned.steps = learned.gap, learned.steps + 1
  learned.gap = learned.gap * NARROWER ^ learned.steps
  if learned.gap < LEAST then forget_gap(learned) end
end
