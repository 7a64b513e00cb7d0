-- Part of `sync`: answers any update.

local read_feedback, apply_feedback -- made by `prepare_feedback`, when they are first needed

local function prepare_feedback()
  @include(shared/feedback)
end

-- Reads an update; nil: its feedback is impossible.
local function read_update(text)
  local update = { @zero(update), feedback = false }
  @update.(update) = struct.unpack('@format(update)', text)
  if #text > UPDATE_BYTES then
    if not read_feedback then prepare_feedback() end
    update.feedback = read_feedback(string.sub(text, UPDATE_BYTES + 1))
    if not update.feedback then return nil end
  end
  return update
end

local function open_entry(scope, update)
  local own = { @zero(entry), is_queued = false }
  own.lease_id, own.seq, own.requested, own.granted = update.lease_id, update.seq, update.requested,
    update.granted_ack
  -- A node may go on under a lease whose entry was closed when it was empty: these totals were counted then.
  own.returned, own.started = update.returned, update.started
  own.job = JOB
  -- A newcomer counts as served now. Otherwise nodes that come and go would starve those that wait.
  own.served = next_tick(scope) -- rule 19: newcomer
  return own
end

-- Applies an update to the caller's entry. Returns the status of the reply.
local function apply_update(scope, update)
  local own = scope.own
  if own and update.lease_id < own.lease_id then return @status(old) end -- rule 6: lower lease id
  if own and update.lease_id > own.lease_id then
    close_entry(scope, NODE, own) -- rule 6: higher lease id
    own = nil
  end
  -- Outside the recovery wait, another node may have got the claimed permits.
  -- rule 9: more than was granted
  local claims = update.granted_ack > (own and own.granted or update.returned)
  -- rule 8: claims in the wait
  if claims and NOW >= FROM then -- rule 8: claims after the wait
    if own then close_entry(scope, NODE, own) end
    return @status(lost)
  end
  if not own then
    own = open_entry(scope, update)
    scope.own = own
  elseif update.seq >= own.seq then -- rule 12: older update
    local begun = math.max(0, update.started - own.started)
    scope.begun, scope.started, own.started = scope.begun + begun, scope.started + begun, own.started + begun
    if begun > 0 then scope.begun_at = NOW - 1000 * update.start_age end -- rule 21: age
    count(scope, own, -1)
    local waited = waiting_at(own) > 0
    own.seq, own.requested = update.seq, update.requested
    own.granted = math.max(own.granted, update.granted_ack) -- rule 10: claims before returns
    if update.returned > own.returned then own.ended_at = NOW end
    own.returned = math.max(own.returned, update.returned)
    -- Otherwise a node that gives back and asks again would overtake those that came meanwhile.
    if not waited and waiting_at(own) > 0 then own.served = next_tick(scope) end
  else -- a late update, or one of the renewal thread
    own.lease_end = NOW + LEASE -- rule 12: lease of an older update
    return @status(ok)
  end
  -- Permits granted since the update was sent are unstarted, too.
  -- rule 22: granted since
  own.unstarted = math.min(held_by(own), update.unstarted + math.max(0, own.granted - update.granted_ack))
  own.suspended = update.suspended
  count(scope, own, 1)
  own.lease_end = NOW + LEASE
  scope.due = math.min(scope.due, own.lease_end)
  own.held_since, own.waiting_since = NOW - 1000 * update.held_age, NOW - 1000 * update.wait_age
  -- A node's delay may follow the site's latency: if it was the longest, find the longest one now.
  -- promise: shorter delay
  if own.delay == scope.delay and update.delay < own.delay then scope.due = NOW end
  @own.(limit) = @update.(limit)
  return @status(ok)
end

local function pack_reply(scope, status, own)
  local effective, learned = scope.effective, scope.learned
  local @reply_(reply) = @zeros(reply)
  reply_status, reply_limit, reply_held = status, effective.limit, scope.held
  reply_available = effective.limit - scope.held - scope.waiting
  reply_reason = scope.reason
  reply_retry_in, reply_backoff = scope.retry_in or -1, scope.backoff_begun or -1
  local wants_feedback, is_backing_off = scope.wants_feedback or (own and own.failures > 0), false
  if learned then
    -- Also after a backoff, until it is known that the site answers again.
    wants_feedback = wants_feedback or learned.backoff > 0 or learned.answered < learned.backoff_end
    wants_feedback = @hook(wants_feedback) or wants_feedback
    is_backing_off = NOW < pause_end(learned)
    reply_paused_at, reply_pause_length = learned.paused_at, learned.pause_length
    if learned.answered > 0 then reply_answered_ago = math.max(0, NOW - learned.answered) end
  end
  if is_paced(scope) then
    local is_least = effective.burst <= 1 -- with bursts, a rate is kept on average only
    reply_least_interval = effective.delay * (1 - effective.jitter)
    reply_least_interval = math.max(reply_least_interval, (@hook(interval)))
    reply_interval = math.max(reply_least_interval, effective.interval)
    if is_least then reply_least_interval = reply_interval end
  end
  if wants_feedback then reply_wants_feedback = 1 end
  if wants_feedback or is_paced(scope) or effective.paused or is_backing_off then reply_starts_count = 1 end
  if own then
    reply_lease_id, reply_granted = own.lease_id, own.granted
    -- Another node asks for a stricter limit than this one, and no operator has set one.
    local is_stricter = not effective.by and (own.concurrency > scope.concurrency or own.delay < scope.delay
      or own.interval < scope.interval)
    if is_stricter then reply_is_stricter = 1 end
  end
  local reply = struct.pack('@format(reply)', @reply_(reply)) .. pack_findings(scope)
  return scope.problem and reply .. scope.problem or reply
end

-- Answers one update.
function slow_path(key, queue, text, state, entry, learned)
  local update = read_update(text)
  if not update then return pack_refusal(@status(refused), '') end
  local scope = read_scope(key, queue, state, entry, learned)
  if scope.job == false then -- there are several
    read_jobs(scope)
  elseif not is_in_use(scope) then
    scope.job = JOB
  elseif scope.job ~= JOB and scope.job ~= true then
    count_jobs(scope, JOB)
  end
  local before = scope.own
  local returned = before and before.returned
  scope.used, scope.wanted = scope.held, scope.held + scope.waiting
  local status = apply_update(scope, update)
  local own = scope.own
  tighten(scope, own or update)
  apply_limit(scope)
  -- Feedback counts only with the permits that it is about, so that it counts once if an update is applied
  -- twice.
  if update.feedback and own and own == before and own.returned > returned then -- rule 14: counts once
    apply_feedback(scope, update.feedback)
  end
  promote(scope)
  -- An entry with nothing in it is closed: the next one has a higher lease id.
  -- rule 15: empty entry
  if own and own.returned == own.granted and own.requested <= own.granted and own.suspended == 0 then
    close_entry(scope, NODE, own)
  end
  local reply = pack_reply(scope, status, own)
  write_scope(scope)
  return reply
end
