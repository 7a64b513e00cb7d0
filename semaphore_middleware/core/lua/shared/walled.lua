-- Part of `apply_feedback`: whether the site is walled, so that requests fail at once, but for one at a time.
-- It is after nothing but refusals for long. Time that it has named does not count.

local INCIDENTS = 5
local OF_DOWN_AFTER = 10 -- times the time after which a site without a response is down

local function note_walled()
  learned.is_walled = 1
  for_each_account(scope, function(node, account)
    if node ~= NODE and waiting_at(account) > 0 then
      notify(node, 'walled', math.floor(NOW - learned.refusing_since), learned.refused_by, name_of(scope.key))
    end
  end)
end

local function hear_refusals()
  learned.refused_by = report.status
  if not scope.backoff_begun or NOW < learned.refusing_since then return end
  if learned.refusing_since == 0 then learned.refusing_since = NOW end
  learned.incidents = learned.incidents + 1
  local is_long = NOW - learned.refusing_since >= OF_DOWN_AFTER * report.down_after -- rule 28: after long
  if is_long and learned.incidents >= INCIDENTS and learned.is_walled == 0 then note_walled() end
end

local function hear_named_time()
  if learned.is_walled == 0 then learned.refusing_since, learned.incidents = NOW + report.retry_after, 0 end
end
