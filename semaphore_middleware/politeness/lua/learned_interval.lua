-- The learned interval: the interval between starts that a site's refusals have taught, where the site meters
-- them: a rate of burst 1 that the server sets itself.
-- When such a site begins to refuse, nothing is left of what it allows. So from one such moment to a later
-- one it has answered as many requests as it allows in that time: this is a measurement window. It
-- ends when the pause is over: until then requests that began before are still reported. Kept in
-- `learned`:
--     learned_interval  between starts (ms); 0: none
--     held_interval     the one before the last step, with which the next crawl begins
--     interval_by_quota the longest, by a quota that the site has named; 0: no quota
--     steps             how often it has been shortened since the last refusal
--     clean             good answers since the last step
--     calm_until        when the next step may be
--     next_by_interval  when the next start may be
--     incident_at       when the last incident began; 0: there was none
--     is_window_open    1 until the pause after that incident is over
--     window_since      when the measurement window's first incident began; 0: there is none
--     window_rest       how much of the pauses in it does not count
--     window_started    `started` of the scope at its beginning
--     window_refused    refusals in it
--     most_interval     the longest allowed: the longest pause of the node that reported the last refusal
--     trial_since       when the present trial began: it shows whether the interval helps
--     trial_started     `started` of the scope when the trial begins to count
--     trial_refused     refusals since then
--     share_before      the share of refusals in the last trial
--     time_before       and its time from start to start; 0: it was before the first interval
--     tried_interval    the interval at its end; 0: there is none
--     off_until         no interval until then, as it did not help
--     share_when_off    the share of refusals when this was found

-- of a pause, what counts in a measurement window (ms): a site saves up for a while, and no longer
local OF_PAUSE = 5000
local MANY_STARTS = 20 -- in a measurement window that counts
local TWICE, SOME_ANSWERED = 2, 3 -- refusals, and answers, in a shorter one that counts, too
local OFTEN, STILL_OFTEN = 0.05, 0.02 -- shares of refusals that call for an interval, and for a longer one
local MARGIN = 1.02 -- times what a window shows
local CALM, NEXT_STEP = 20000, 3000 -- times from a refusal to the first step, and between steps (ms)
local SKIPPED = 8 -- starts at the beginning of a trial that do not count, as they were under older intervals
local MOST_LONGER = 2 -- how much longer an interval may become until its trial is over

-- An operator who has set an interval knows better.
local function has_set_interval(scope)
  local effective = scope.effective
  return effective ~= scope and (rawget(effective, 'delay') or rawget(effective, 'interval')) ~= nil
end

local function learned_interval_interval(scope)
  local learned = scope.learned
  local interval = learned and learned.learned_interval or 0
  if interval == 0 or has_set_interval(scope) then return 0, -math.huge, 0 end
  return interval, math.min(learned.next_by_interval, NOW + interval), @reason(paced)
end

local function begin_trial(learned, scope)
  learned.trial_since = NOW
  learned.trial_started, learned.trial_refused = scope.started + SKIPPED, 0
end

-- Of the present trial, the share of refusals and the time from start to start.
local function measure(learned, scope)
  local starts = math.max(1, scope.started - learned.trial_started)
  return learned.trial_refused / starts, (NOW - learned.trial_since) / (starts + SKIPPED)
end

local function set_interval(learned, scope, interval)
  if NOW < learned.off_until then return end
  if learned.interval_by_quota > 0 then interval = math.min(interval, learned.interval_by_quota) end
  interval = math.min(interval, learned.most_interval) -- promise: longest interval
  local is_first = learned.tried_interval == 0
  if not is_first then interval = math.min(interval, MOST_LONGER * learned.tried_interval) end
  if interval > learned.learned_interval then
    if is_first then
      learned.share_before, learned.time_before = measure(learned, scope), 0
      learned.tried_interval = interval
    end
    begin_trial(learned, scope)
  end
  learned.learned_interval, learned.held_interval, learned.steps = interval, interval, 0
end

local function learned_interval_forget(learned)
  learned.learned_interval, learned.held_interval, learned.interval_by_quota, learned.steps = 0, 0, 0, 0
  learned.incident_at, learned.is_window_open, learned.window_since = 0, 0, 0
  learned.tried_interval, learned.off_until = 0, 0
end

local function learned_interval_on_started(learned, scope, begun_at)
  if learned.learned_interval == 0 then return end
  local _, earliest = learned_interval_interval(scope)
  -- rule 29: starts
  learned.next_by_interval = math.max(earliest, begun_at) + scope.begun * learned.learned_interval
  scope.has_learned = true
end

-- Ends the measurement window, before the first start after a pause.
local function learned_interval_before_grants(learned, scope)
  if learned.is_window_open == 0 or NOW < learned.backoff_end then return end
  local starts = scope.started - learned.window_started
  local answered = starts - learned.window_refused
  local is_enough = starts >= MANY_STARTS or learned.window_refused >= TWICE
  learned.is_window_open, scope.has_learned = 0, true
  -- the first interval is a rough one
  learned.calm_until = NOW + (learned.learned_interval > 0 and CALM or CALM / 2)
  if learned.steps > 0 then -- the last step was too much
    set_interval(learned, scope, learned.held_interval) -- rule 29: last step undone
  elseif learned.window_since > 0 then
    if not is_enough or answered < SOME_ANSWERED then return end
    local often = learned.learned_interval > 0 and STILL_OFTEN or OFTEN
    local shown = MARGIN * (learned.incident_at - learned.window_since - learned.window_rest) / answered
    -- rule 29: wider
    if learned.window_refused > often * starts then
      set_interval(learned, scope, math.max(learned.learned_interval, shown))
    end
  end
  learned.window_since, learned.window_rest = learned.incident_at, 0
  learned.window_started, learned.window_refused = scope.started, 0
end

local function learned_interval_wants_feedback(learned)
  return learned.learned_interval > 0
end

local function learned_interval_on_idle(learned, scope)
  learned.window_started = learned.window_started - scope.started
  learned.trial_started = learned.trial_started - scope.started
  learned.off_until = math.max(0, learned.off_until - NOW)
  return learned.learned_interval > 0 and REMEMBERED or learned.off_until
end

-- Idle time belongs to no measurement window and no trial.
local function learned_interval_on_wake(learned, start)
  learned.trial_since = learned.trial_since + NOW - start
  if learned.off_until > 0 then learned.off_until = start + learned.off_until end
  if learned.incident_at == 0 then return end
  learned.incident_at = learned.incident_at + NOW - start
  if learned.window_since > 0 then learned.window_since = learned.window_since + NOW - start end
end

local function learned_interval_remember(learned, before)
  learned.learned_interval, learned.held_interval = before.held_interval, before.held_interval
end

local function learned_interval_find(scope, found)
  local interval = learned_interval_interval(scope)
  if interval > 0 then found.learned_interval = interval end
  found.interval_is_off = NOW < scope.learned.off_until and 1 or 0
end

-- Section feedback

local SHORTER = 0.92
local ENOUGH = 10 -- good answers until the next step
local LEAST = 5 -- a shorter interval is none (ms)
local TRIAL = 30 -- starts that count in it
local LEAST_SHARE = 0.1 -- of refusals, in trials that can show that the interval does not help
local FIRST_LONGER = 1.5 -- how much longer the first interval counts as than the time between starts before
local OFF = 300000 -- after an interval that did not help (ms)

-- Ends a trial. If an interval becomes longer, a site that meters starts answers as many requests in a second
-- as before, hence a larger share of them. A site that refuses some pages, or by chance, answers the same
-- share. The nearer of the two decides; in the second case there is no interval for a while, or until the
-- site refuses a much larger share.
local function learned_interval_on_feedback(learned, scope)
  if scope.started - learned.trial_started < TRIAL then return end
  local share, per_start = measure(learned, scope)
  if learned.learned_interval > 0 then
    local longer = learned.time_before > 0 and per_start / learned.time_before or FIRST_LONGER
    local better = (1 - share) / (1 - learned.share_before)
    -- rule 29: no help
    if math.min(share, learned.share_before) >= LEAST_SHARE and better < longer ^ 0.5 then
      learned_interval_forget(learned)
      learned.off_until, learned.share_when_off = NOW + OFF, share
    else
      learned.tried_interval = learned.learned_interval
    end
  elseif share > (1 + learned.share_when_off) / 2 then
    learned.off_until = 0
  end
  learned.share_before, learned.time_before = share, per_start
  begin_trial(learned, scope)
end

local function learned_interval_on_metered(learned, scope, feedback, is_new)
  learned.window_refused = learned.window_refused + feedback.metered
  if scope.started >= learned.trial_started then
    learned.trial_refused = learned.trial_refused + feedback.metered
  end
  learned.most_interval = feedback.most
  if feedback.quota_interval > 0 then
    learned.interval_by_quota = math.min(feedback.quota_interval, feedback.most)
  end
  if is_new then
    local pause = learned.backoff_end - learned.incident_at -- of the last incident
    learned.window_rest = learned.window_rest + math.max(0, pause - OF_PAUSE) -- rule 29: pauses
    learned.incident_at, learned.is_window_open, learned.clean = NOW, 1, 0
    if learned.learned_interval == 0 and learned.interval_by_quota > 0 then
      set_interval(learned, scope, learned.interval_by_quota)
    end
  end
  return learned.learned_interval > 0
end

-- Good answers, while requests wait though there is room for them, shorten it step by step, until it is gone.
local function learned_interval_on_good(learned, scope, feedback)
  if learned.learned_interval == 0 or feedback.metered > 0 then return end
  if scope.waiting == 0 or scope.held >= scope.effective.limit then return end
  learned.clean = learned.clean + feedback.good
  if learned.clean < ENOUGH or NOW < learned.calm_until then return end
  learned.calm_until, learned.clean = NOW + NEXT_STEP, 0
  learned.held_interval, learned.steps = learned.learned_interval, learned.steps + 1
  learned.learned_interval = learned.learned_interval * SHORTER ^ learned.steps -- rule 29: narrower
  if learned.learned_interval < LEAST then learned_interval_forget(learned) end
end
