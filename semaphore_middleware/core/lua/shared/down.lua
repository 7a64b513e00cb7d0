-- Part of `apply_feedback`: whether the site is down, so that requests fail at once, but for one at a time.

local DOWN_IN_A_ROW = 5 -- requests without response, at a site that is down

-- A failure is the fault of the node that had it, unless every node says the same: each that has given a
-- permit back since the first failure has failed, and of the others none holds a permit.
local function is_of_all()
  local found = true
  for_each_account(scope, function(_, account)
    if account.ended_at >= learned.failing_since then
      found = found and account.failures > 0
    else
      found = found and held_by(account) == 0
    end
  end)
  return found
end

local function note_tried()
  if believes(learned, NODE) then return end
  learned.tried = learned.tried .. string.format('%.0f ', MACHINE) .. NODE .. '\0'
end

-- Sites that went down together are not all tried together: the pause before the next try varies.
local function note_down()
  scope.backoff_begun = scope.backoff_begun * (1 - RANDOM / 2)
  learned.failing_end = NOW + scope.backoff_begun
  if learned.is_down == 1 then return end
  learned.is_down = 1
  for_each_account(scope, function(node, account)
    if node ~= NODE and waiting_at(account) > 0 and believes(learned, node) then
      notify(node, 'down', math.floor(NOW - learned.failing_since), name_of(scope.key))
    end
  end)
end

-- The site is down if the last pauses were in vain, too.
local function hear_failures(asked)
  if learned.failures == 0 then learned.failing_since = NOW end
  learned.failures = learned.failures + report.failed
  own.failures = own.failures + report.failed
  note_tried()
  if learned.failures < IN_A_ROW or not is_of_all() then return end -- rule 24: all have failed
  learned.is_failing = 1
  begin_backoff(asked, 'failing_end')
  local is_long = NOW - learned.failing_since >= report.down_after -- promise: down after long
  -- promise: down
  if scope.backoff_begun and learned.failures >= DOWN_IN_A_ROW and is_long then note_down() end
end
