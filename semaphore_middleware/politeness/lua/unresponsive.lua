-- Unresponsive sites: one request at a time tries a site that responds to nobody. After a long time it is
-- down, and all other requests fail at once. In `learned` it keeps:
--     failed_in_a_row  requests without response, of any node
--     failing_since    the first one's time
--     failing_end      no start before this, except first tries
--     is_failing       1 if no node that has tried it gets a response
--     is_down          1 if requests are to fail, except one at a time
--     tried_by         while it fails: machine and name of each node that has failed
--     first_try        the last node that has made its first try

local MOST_TRIED = 16 -- nodes that are remembered

-- Forgets the failures of a site that responds.
local function unresponsive_forget(learned)
  learned.failed_in_a_row, learned.failing_since, learned.failing_end = 0, 0, 0
  learned.is_failing, learned.is_down, learned.tried_by, learned.first_try = 0, 0, '', ''
end

-- Whether the site counts as failing for a node: the node has tried it itself, or nodes on two machines have,
-- or MOST_TRIED nodes.
local function counts_as_failing_for(learned, node)
  local tried, first = 0, nil
  for machine, name in string.gmatch(learned.tried_by, '(%d+) (%Z+)') do
    if name == node then return true end
    first, tried = first or machine, tried + 1
    if machine ~= first then return true end
  end
  return tried >= MOST_TRIED
end

local function unresponsive_pause_end(learned, is_first_try)
  return is_first_try and 0 or learned.failing_end
end

local function unresponsive_shut_by(learned)
  return learned.is_down == 1 and @reason(down)
end

local function unresponsive_room(learned, is_first_try)
  if learned.is_failing == 1 and not is_first_try then return 1, @reason(failing) end
end

-- Lets a node that comes to a failing site try it once, before the site counts as failing for this node: the
-- failures may be the other nodes' own. One node at a time makes its first try.
local function let_try(learned, scope, grantable, grant)
  local own = scope.own
  if not (own and waiting_at(own) > 0 and held_by(own) == 0)
    or counts_as_failing_for(learned, NODE) then return end
  local other = learned.first_try ~= NODE and learned.first_try or ''
  local trying = other ~= '' and entry_of(scope, other)
  if trying and held_by(trying) > 0 then return end
  if grantable(scope, true) > 0 then
    grant(scope, own, 1)
    learned.first_try, scope.has_learned = NODE, true
  end
end

local function unresponsive_before_grants(learned, scope, grantable, grant)
  if learned.is_failing == 1 then let_try(learned, scope, grantable, grant) end -- rule 26: first try
end

local function unresponsive_wants_feedback(learned)
  return learned.failed_in_a_row > 0
end

local function unresponsive_find(learned, found)
  found.is_failing = learned.is_failing
  local counts_here = NODE == '' or counts_as_failing_for(learned, NODE) -- '' is an operator's call
  if learned.is_down == 1 and counts_here then found.down_for = math.max(0, NOW - learned.failing_since) end
end

local function unresponsive_on_idle(learned)
  learned.failing_end = math.max(0, learned.failing_end - NOW)
  if learned.failing_end > 0 then return learned.failing_end + HOUR end
  return learned.failed_in_a_row > 0 and MEMORY or 0
end

local function unresponsive_on_wake(learned, start)
  learned.failing_end = learned.failing_end > 0 and start + learned.failing_end or 0
end

-- Section feedback

local FAILING_IN_A_ROW, DOWN_IN_A_ROW = 3, 5 -- requests without response, of a site that is failing, or down

-- Whether all nodes fail, so that it is the site's fault and not a node's: each node that has given a permit
-- back since the first failure has failed, and no other node holds a permit. False also if that is left to a
-- later call.
local function have_all_failed(learned, scope)
  local found = true
  local is_known = for_each_entry(scope, function(_, entry)
    if entry.ended_at >= learned.failing_since then
      found = found and entry.failures > 0
    else
      found = found and held_by(entry) == 0
    end
  end)
  return is_known and found
end

-- Notes that the site is down. The pause before the next try varies, so that sites which went down together
-- are not all tried together.
local function note_down(learned, scope)
  scope.backoff_begun = scope.backoff_begun * (1 - RANDOM / 2)
  learned.failing_end = NOW + scope.backoff_begun
  if learned.is_down == 1 then return end
  learned.is_down = 1
  notify_waiting(scope, 'unresponsive 1 ' .. math.floor(NOW - learned.failing_since), function(node)
    return counts_as_failing_for(learned, node)
  end)
end

local function unresponsive_on_feedback(learned, feedback)
  -- An answer to a request that began before the first failure says nothing about it.
  local has_answers = feedback.good + feedback.errors + feedback.refused > 0
  if has_answers and NOW - feedback.answer_age >= learned.failing_since then
    unresponsive_forget(learned) -- rule 25: answer to a newer request
  end
end

-- The site is down if it has not responded after several pauses.
local function unresponsive_on_failed(learned, scope, feedback, is_new, begin_backoff)
  if learned.failed_in_a_row == 0 then learned.failing_since = NOW end
  learned.failed_in_a_row = learned.failed_in_a_row + feedback.failed
  if not counts_as_failing_for(learned, NODE) then
    learned.tried_by = learned.tried_by .. string.format('%.0f ', MACHINE) .. NODE .. '\0'
  end
  if learned.is_failing == 1 and not is_new then return end -- its pause has begun
  local are_many = learned.failed_in_a_row >= FAILING_IN_A_ROW
  if not are_many or not have_all_failed(learned, scope) then return end -- rule 24: all have failed
  learned.is_failing = 1
  begin_backoff('failing_end')
  local is_long = NOW - learned.failing_since >= feedback.down_after -- promise: down after long
  local is_down = scope.backoff_begun and learned.failed_in_a_row >= DOWN_IN_A_ROW and is_long
  if is_down then note_down(learned, scope) end -- promise: down
end
