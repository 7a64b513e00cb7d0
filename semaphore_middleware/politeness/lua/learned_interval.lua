-- Shared by all scripts that grant: the gap between starts that a site's refusals have taught, where the site
-- meters them: a rate of burst 1 that the server sets itself.
-- When such a site begins to refuse, nothing is left of what it allows. So from one such moment to a later
-- one it has answered as many requests as it allows in that time: this is a span. It is judged when the pause
-- is over: until then requests that began before are still reported.

local OF_PAUSE = 5000 -- of a pause, what counts in a span (ms): a site saves up for a while, and no longer
local MANY_STARTS = 20 -- in a span that is judged
local TWICE, SOME_ANSWERED = 2, 3 -- refusals, and answers, in a shorter one that is judged, too
local OFTEN, TOO_OFTEN = 0.05, 0.02 -- the share of refusals that calls for a gap, and for a wider one
local WIDER, NARROWER = 1.02, 0.92
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

-- Before the first start after a pause.
local function judge_span(scope)
  local learned = scope.learned
  local starts = scope.started - learned.span_started
  local answered = starts - learned.span_refused
  local is_enough = starts >= MANY_STARTS or learned.span_refused >= TWICE
  learned.is_refused, scope.has_learned = 0, true
  learned.calm_until = NOW + (learned.gap > 0 and CALM or CALM / 2) -- the first gap is a rough one
  if learned.steps > 0 then -- the last step was too much
    set_gap(learned, learned.held_gap) -- rule 29: last step undone
  elseif learned.span_since > 0 then
    if not is_enough or answered < SOME_ANSWERED then return end
    local often = learned.gap > 0 and TOO_OFTEN or OFTEN
    local mean = (learned.refused_at - learned.span_since - learned.span_rest) / answered
    -- rule 29: wider
    if learned.span_refused > often * starts then set_gap(learned, math.max(learned.gap, WIDER * mean)) end
  end
  learned.span_since, learned.span_rest = learned.refused_at, 0
  learned.span_started, learned.span_refused = scope.started, 0
end

-- `is_new`: an incident begins.
local function hear_metered(learned, report, is_new)
  learned.span_refused = learned.span_refused + report.metered
  if report.quota_gap > 0 then learned.quota_gap = math.min(report.quota_gap, report.most) end
  if not is_new then return end
  local pause = learned.backoff_end - learned.refused_at -- of the last incident
  learned.span_rest = learned.span_rest + math.max(0, pause - OF_PAUSE) -- rule 29: pauses
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
  learned.gap = learned.gap * NARROWER ^ learned.steps -- rule 29: narrower
  if learned.gap < LEAST then forget_gap(learned) end
end
