-- Part of `apply_feedback`: whether the site is down, so that requests fail at once, but for one at a time.

local DOWN_IN_A_ROW = 5 -- requests without response, at a site that is down

-- Sites that went down together are not all tried together: the pause before the next try varies.
local function note_down()
  scope.backoff_begun = scope.backoff_begun * (1 - RANDOM / 2)
  learned.backoff_end = NOW + scope.backoff_begun
  if learned.is_down == 1 then return end
  learned.is_down = 1
  for_each_account(scope, function(node, account)
    if node ~= NODE and waiting_at(account) > 0 then
      notify(node, 'down', math.floor(NOW - learned.failing_since), name_of(scope))
    end
  end)
end

-- The site is down if the last pauses were in vain, too.
local function hear_failures(asked)
  if learned.failures == 0 then learned.failing_since = NOW end
  learned.failures = learned.failures + report.failed
  if not is_failing(learned) then return end
  begin_backoff(asked)
  local is_long = NOW - learned.failing_since >= report.down_after
  if scope.backoff_begun and learned.failures >= DOWN_IN_A_ROW and is_long then note_down() end
end
