-- Part of `promote`: policies. A line with `@hook(moment)` is written once for each policy whose file has a
-- function of this moment: `local function <policy>_<moment>(...)`. If none has, it is left out, so the line
-- must do nothing else. The hook becomes the head of this function, so each of its parameters must be a
-- variable at that place: it takes those below that it needs.
-- All policies become part of one function: no two may use the same local name at its top. A
-- file ends with the line `-- Section feedback` and the functions for the moments from `on_feedback` to
-- `on_failed`, which are made in calls with feedback only.
-- `learned` is what is known of the site: what a policy keeps there is read by this policy alone. After
-- feedback and `on_wake` it is saved anyway; `on_started` and `before_grants` must set `scope.has_learned` if
-- they change it, or the change is lost. The moments:
--     forget(learned)                        an operator ends what it has found
--     on_feedback(learned, scope, feedback)  a node reports how the site answered; it may have
--     on_good(learned, scope, feedback)      good answers,
--     on_metered(learned, scope, feedback, is_new)    refusals for too many requests, with which an
--                                            incident may begin: returns whether the policy handles them,
--     on_incident(learned, scope, is_handled)    an incident that begins,
--     on_refused(learned, scope, feedback)   refusals,
--     on_named_time(learned, scope, feedback)    a time until which the site wants no requests,
--     on_failed(learned, scope, feedback, is_new, begin_backoff)    requests without response, with which
--                                            an incident may begin
--     on_started(learned, scope, begun_at)   requests have begun, the last of them then
--     pause_end(learned, is_first_try)       when its own pause ends; it may not hold for a node's first try
--     interval(scope)                        the time between starts (ms; 0: any), when the next may be, and
--                                            the reason
--     on_limit(scope)                        may lower `scope.effective.limit`, with
--                                            the reason in `scope.lowered_by`; may set
--                                            `scope.wants_feedback`, also while nothing is learned
--     shut_by(learned)                       the reason, if requests fail at once
--     room(learned, is_first_try)            how many may hold a permit, and the reason; nil: any number
--     before_grants(learned, scope, grantable, grant)    in each call, before the queue is served
--     wants_feedback(learned)                whether nodes should report ordinary answers, too
--     find(learned, scope, found)            puts its numbers into the record `findings`
--     on_idle(learned, scope)                makes its times relative to NOW; returns its time to live (ms)
--     on_wake(learned, start)                makes its times absolute: they were relative to `start`
--     remember(learned, before)              copies what is kept of `before` after MEMORY

local MEMORY = 600000 -- how long what an idle site has taught is kept (ms)
local REMEMBERED = 7 * DAY -- and how long what the next crawl begins with (ms)

@policies(always)

-- When the site's pause is over.
local function pause_end(learned, is_first_try)
  local ends = learned.backoff_end
  ends = math.max(ends, @hook(pause_end))
  return ends
end

local function smaller(most, reason, room, its_reason)
  if room and room <= most then return room, its_reason end
  return most, reason
end

-- The least number of permits that `most` and the policies allow, and its reason.
local function least_room(learned, most, reason, is_first_try)
  most, reason = smaller(most, reason, @hook(room))
  return most, reason
end

-- The record `findings` of all policies, packed.
local function pack_findings(scope)
  local learned = scope.learned
  if not learned then return struct.pack('@format(findings)', @zeros(findings)) end
  local found = { @zero(findings) }
  @hook(find)
  return struct.pack('@format(findings)', @found.(findings))
end
