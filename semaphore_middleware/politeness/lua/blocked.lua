-- Blocked sites: after only refusals for a long time, one request at a time tries the site, and the others
-- fail at once. Time that the site has named does not count, up to a day. In `learned` it keeps:
--     refusing_since  since when the site refuses all requests; or the end of a time that it has named
--     incidents       since then
--     refuses_all     1 if requests are to fail, except one at a time
--     refused_by      the status of the last refusal

local function blocked_forget(learned)
  learned.refusing_since, learned.incidents, learned.refuses_all, learned.refused_by = 0, 0, 0, 0
end

local function blocked_for(learned)
  return math.max(0, NOW - learned.refusing_since)
end

local function blocked_shut_by(learned)
  return learned.refuses_all == 1 and @reason(blocked)
end

local function blocked_room(learned)
  if learned.refuses_all == 1 then return 1, @reason(blocked) end -- rule 28: one at a time
end

local function blocked_wants_feedback(learned)
  return learned.incidents > 0
end

local function blocked_find(learned, found)
  if learned.refuses_all == 1 then found.blocked_for = blocked_for(learned) end
  found.refused_by = learned.refused_by
end

-- Section feedback

local INCIDENTS = 5
local OF_DOWN_AFTER = 10 -- times `down_after`, after which a silent site is down

local function blocked_on_good(learned)
  blocked_forget(learned) -- rule 28: good answer
end

local function blocked_on_refused(learned, scope, feedback)
  learned.refused_by = feedback.status
  if not scope.backoff_begun or NOW < learned.refusing_since then return end
  if learned.refusing_since == 0 then learned.refusing_since = NOW end
  learned.incidents = learned.incidents + 1
  local is_long = NOW - learned.refusing_since >= OF_DOWN_AFTER * feedback.down_after -- rule 28: after long
  if is_long and learned.incidents >= INCIDENTS and learned.refuses_all == 0 then
    learned.refuses_all = 1
    notify_waiting(scope, 'blocked ' .. math.floor(blocked_for(learned)) .. ' ' .. learned.refused_by)
  end
end

local function blocked_on_named_time(learned, feedback)
  if learned.refuses_all == 1 then return end
  local named = math.min(feedback.retry_after, DAY)
  learned.refusing_since, learned.incidents = NOW + named, 0 -- rule 28: named time
end
