-- Part of `sync`: what a site's answers change: its backoff, whether it is down, and the working limit of an
-- adaptive one. An incident counts once, however many requests it affects: all that began before the backoff
-- belong to it.

-- Feedback, from its record; nil: it makes no sense.
local function read_feedback(text)
  if #text < @bytes(feedback) then return nil end
  local report = {}
  @report.(feedback) = struct.unpack('@format(feedback)', text)
  for _, number in pairs(report) do
    if not (number >= 0 and number < math.huge) then return nil end
  end
  for _, part in ipairs({ 'good_age', 'bad_age', 'retry_after', 'start', 'most', 'down_after' }) do
    report[part] = 1000 * report[part] -- nodes say them in seconds
  end
  return report
end

local function hear_feedback(scope, report)
  scope.learned = scope.learned or nothing_learned()
  local learned = scope.learned

  local function set_learned(part, value)
    if learned[part] ~= value then
      learned[part] = value
      scope.has_learned = true
    end
  end

  local DOWN_IN_A_ROW = 5 -- requests without response, at a site that is down

  -- An adaptive limit grows by addition and falls by multiplication (Chiu and Jain, 1989). It falls when
  -- the site refuses a request, and when its latency is well above its usual one, as in TCP Vegas (Brakmo
  -- and Peterson, 1995). Means are of logarithms: a page that takes a hundred times as long must not
  -- decide.
  local WELL_ABOVE = math.log(1.5)
  local FEW = 5 -- answers that are needed to find that the site is slow
  local DRIFT = 0.02 -- share of a rise in latency by which the site's usual latency follows it
  local AFTER_REFUSAL, AFTER_SLOWNESS, OF_REMEMBERED = 0.5, 0.85, 0.8

  -- Starts a new round: only answers to requests that begin under this working limit count in it.
  local function begin_round()
    set_learned('since', NOW)
    set_learned('samples', 0)
    set_learned('sum', 0)
  end

  local function shrink(share)
    if not scope.force.adaptive then return end
    local used = math.min(learned.working, scope.force.concurrency)
    set_learned('working', math.max(1, used * share))
    set_learned('steady', 1)
    apply_working_limit(scope)
    begin_round()
  end

  -- Doubles at first; once it has been too high for the site, grows by one in five rounds.
  local function grow()
    local working = learned.working
    working = learned.steady == 1 and working + 1 or working * 2
    set_learned('working', math.min(working, scope.force.concurrency))
    apply_working_limit(scope)
  end

  -- How many answers make a round.
  local function enough()
    return math.max(FEW, math.floor(learned.working) * (learned.steady == 1 and 5 or 2))
  end

  local function hear_latency()
    if not scope.force.adaptive or NOW - report.good_age < learned.since then return end
    set_learned('samples', learned.samples + report.good)
    set_learned('sum', learned.sum + report.good * report.mean_log_ms)
    local mean = learned.sum / learned.samples
    local slow = learned.base > 0 and mean > learned.base + WELL_ABOVE
    if slow and learned.samples >= FEW and learned.working >= 2 then return shrink(AFTER_SLOWNESS) end
    if learned.samples < enough() then return end
    -- If the site is slow with one request at a time, that is its usual latency.
    if learned.base == 0 or slow or mean < learned.base then
      set_learned('base', mean)
    else
      set_learned('base', learned.base + DRIFT * (mean - learned.base))
    end
    if scope.used >= scope.force.limit then -- else the limit was not reached
      remember_limit(scope, learned.working)
      grow()
    end
    begin_round()
  end

  -- Notifies all nodes that hold permits: a request that has not started yet should not.
  local function warn_holders()
    for_each_account(scope, function(node, account)
      if held_by(account) > 0 then notify(node, 'backoff', WALL, name_of(scope)) end
    end)
  end

  local function hold_back(pause, is_new)
    if is_new then
      scope.backoff_begun = pause
      set_learned('paused_at', WALL)
      warn_holders()
    end
    set_learned('backoff_end', math.max(learned.backoff_end, NOW + pause))
    note_pause(scope, learned.paused_at, learned.backoff_end - NOW, report)
  end

  local function begin_backoff(asked)
    -- NOW is rounded down: a request that begins as the last pause ends is of a new incident.
    local pause, is_new = asked, NOW + 1 - report.bad_age >= learned.backoff_end
    if is_new then
      if pause == 0 then
        pause = math.min(report.most, math.max(report.start, 2 * learned.backoff))
        set_learned('backoff', pause)
      end
      shrink(AFTER_REFUSAL)
    end
    hold_back(pause, is_new)
  end

  -- The last pauses were in vain, too: from now on requests fail at once. The one at a time that tries
  -- the site again comes after a pause that varies, so that sites which went down together are not
  -- all tried together.
  local function note_down()
    scope.backoff_begun = scope.backoff_begun * (1 - RANDOM / 2)
    set_learned('backoff_end', NOW + scope.backoff_begun)
    if learned.is_down == 1 then return end
    set_learned('is_down', 1)
    for_each_account(scope, function(node, account)
      if node ~= NODE and waiting_at(account) > 0 then
        notify(node, 'down', math.floor(NOW - learned.failing_since), name_of(scope))
      end
    end)
  end

  local function hear_failures(asked)
    if learned.failures == 0 then set_learned('failing_since', NOW) end
    set_learned('failures', learned.failures + report.failed)
    if not is_failing(learned) then return end
    begin_backoff(asked)
    local is_long = NOW - learned.failing_since >= report.down_after
    if scope.backoff_begun and learned.failures >= DOWN_IN_A_ROW and is_long then note_down() end
  end

  -- As many answers as a quarter of the limit halve the pause that the next incident begins with: a site
  -- that answers most requests and refuses the rest must not end up with the longest pause. If the limit
  -- is far from reached, the permits in use and waited for count in its place.
  local function recover()
    set_learned('answered', math.max(learned.answered, NOW - report.good_age))
    if learned.backoff > 0 then
      local most = math.min(scope.force.limit, scope.wanted)
      local backoff = learned.backoff * 0.5 ^ (report.good / math.max(1, most / 4))
      set_learned('backoff', backoff >= report.start / 2 and backoff or 0)
    end
  end

  -- A crawl begins a little below the limit with which the last one of this site got on.
  if scope.force.adaptive and learned.working == 0 then
    local good = remembered_limit(scope)
    set_learned('working', math.max(1, OF_REMEMBERED * good))
    set_learned('steady', good > 0 and 1 or 0)
    if good > 0 then apply_working_limit(scope) end
  end
  if report.good + report.errors + report.refused > 0 then -- it is there
    set_learned('failures', 0)
    set_learned('is_down', 0)
  end
  if report.good > 0 then
    recover()
    hear_latency()
  end
  local asked = math.min(report.retry_after, report.most)
  if report.refused > 0 then
    begin_backoff(asked)
  elseif asked > 0 then
    hold_back(asked, NOW >= learned.backoff_end)
  end
  if report.failed > 0 then hear_failures(asked) end
end
