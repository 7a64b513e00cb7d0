-- The learned interval: the gap between starts that a site's refusals have taught, where the site meters
-- them: a rate of burst 1 that the server sets itself.
-- When such a site begins to refuse, nothing is left of what it allows. So from one such moment to a later
-- one it has answered as many requests as it allows in that time: this is a span. It is judged when the pause
-- is over: until then requests that began before are still reported. In `learned` it keeps:
--     learned_gap   between starts; 0: none
--     held_gap      the one before the last step, which is remembered
--     widest_gap    by a quota that the site has named; 0: none
--     steps         by which it has been narrowed since the last refusal
--     clean         good answers since the last step
--     calm_until    no step before
--     next_by_gap   no start before
--     incident_at   when the last incident began; 0: there was none
--     is_unjudged   1 until the pause after it is over
--     span_since    when the first incident of the span began; 0: there is none
--     span_rest     time of the pauses in it that does not count
--     span_started  `started` of the scope at its beginning
--     span_refused  refusals in it

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

local function learned_interval_pace(scope)
  local learned = scope.learned
  local gap = learned and learned.learned_gap or 0
  if gap == 0 or has_set_pace(scope) then return 0, -math.huge, 0 end
  return gap, math.min(learned.next_by_gap, NOW + gap), @reason(learned)
end

local function set_gap(learned, gap)
  if learned.widest_gap > 0 then gap = math.min(gap, learned.widest_gap) end
  learned.learned_gap, learned.held_gap, learned.steps = gap, gap, 0
end

local function learned_interval_forget(learned)
  learned.learned_gap, learned.held_gap, learned.widest_gap, learned.steps = 0, 0, 0, 0
  learned.incident_at, learned.is_unjudged, learned.span_since = 0, 0, 0
end

local function learned_interval_on_started(learned, scope, begun_at)
  if learned.learned_gap == 0 then return end
  local _, earliest = learned_interval_pace(scope)
  learned.next_by_gap = math.max(earliest, begun_at) + scope.begun * learned.learned_gap -- rule 29: starts
  scope.has_learned = true
end

-- Judges the span, before the first start after a pause.
local function learned_interval_before_grants(learned, scope)
  if learned.is_unjudged == 0 or NOW < learned.backoff_end then return end
  local starts = scope.started - learned.span_started
  local answered = starts - learned.span_refused
  local is_enough = starts >= MANY_STARTS or learned.span_refused >= TWICE
  learned.is_unjudged, scope.has_learned = 0, true
  learned.calm_until = NOW + (learned.learned_gap > 0 and CALM or CALM / 2) -- the first gap is a rough one
  if learned.steps > 0 then -- the last step was too much
    set_gap(learned, learned.held_gap) -- rule 29: last step undone
  elseif learned.span_since > 0 then
    if not is_enough or answered < SOME_ANSWERED then return end
    local often = learned.learned_gap > 0 and TOO_OFTEN or OFTEN
    local wider = WIDER * (learned.incident_at - learned.span_since - learned.span_rest) / answered
    -- rule 29: wider
    if learned.span_refused > often * starts then set_gap(learned, math.max(learned.learned_gap, wider)) end
  end
  learned.span_since, learned.span_rest = learned.incident_at, 0
  learned.span_started, learned.span_refused = scope.started, 0
end

local function learned_interval_on_metered(learned, report, is_new)
  learned.span_refused = learned.span_refused + report.metered
  if report.quota_gap > 0 then learned.widest_gap = math.min(report.quota_gap, report.most) end
  if is_new then
    local pause = learned.backoff_end - learned.incident_at -- of the last incident
    learned.span_rest = learned.span_rest + math.max(0, pause - OF_PAUSE) -- rule 29: pauses
    learned.incident_at, learned.is_unjudged, learned.clean = NOW, 1, 0
    if learned.learned_gap == 0 and learned.widest_gap > 0 then set_gap(learned, learned.widest_gap) end
  end
  return learned.learned_gap > 0
end

-- Good answers, while requests wait though there is room for them, narrow it step by step, until it is gone.
local function learned_interval_on_good(learned, scope, report)
  if learned.learned_gap == 0 or report.metered > 0 then return end
  if scope.waiting == 0 or scope.held >= scope.force.limit then return end
  learned.clean = learned.clean + report.good
  if learned.clean < ENOUGH or NOW < learned.calm_until then return end
  learned.calm_until, learned.clean = NOW + NEXT_STEP, 0
  learned.held_gap, learned.steps = learned.learned_gap, learned.steps + 1
  learned.learned_gap = learned.learned_gap * NARROWER ^ learned.steps -- rule 29: narrower
  if learned.learned_gap < LEAST then learned_interval_forget(learned) end
end

local function learned_interval_wants_feedback(learned)
  return learned.learned_gap > 0
end

local function learned_interval_on_idle(learned, scope)
  learned.span_started = learned.span_started - scope.started
  return learned.learned_gap > 0 and REMEMBERED or 0
end

-- Idle time is not of a span.
local function learned_interval_on_wake(learned, start)
  if learned.incident_at == 0 then return end
  learned.incident_at = learned.incident_at + NOW - start
  if learned.span_since > 0 then learned.span_since = learned.span_since + NOW - start end
end

local function learned_interval_remember(learned, before)
  learned.learned_gap, learned.held_gap = before.held_gap, before.held_gap
end

local function learned_interval_find(scope, found)
  local gap = learned_interval_pace(scope)
  if gap > 0 then found.learned_gap = gap end
end
