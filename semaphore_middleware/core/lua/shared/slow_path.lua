-- Part of `sync`: answers any statement.

-- The statement; nil: its feedback makes no sense.
local function read_statement(text)
  local said = { @zero(statement), feedback = false }
  @said.(statement) = struct.unpack('@format(statement)', text)
  if #text > STATEMENT_BYTES then
    said.feedback = read_feedback(string.sub(text, STATEMENT_BYTES + 1))
    if not said.feedback then return nil end
  end
  return said
end

local function open_account(scope, said)
  local own = { @zero(account), is_queued = false }
  own.term, own.seq, own.asked, own.granted = said.term, said.seq, said.asked, said.believed
  -- A node may go on under a term whose account was closed when it was empty: these are counted.
  own.returned, own.started = said.returned, said.started
  own.job = JOB
  -- A newcomer counts as served now. Else nodes that come and go would starve those that wait.
  own.served = next_tick(scope) -- rule 19: newcomer
  return own
end

-- Brings the caller's account up to what it says. Returns the status of the reply.
local function apply_statement(scope, said)
  local own = scope.own
  if own and said.term < own.term then return @status(old) end -- rule 6: lower term
  if own and said.term > own.term then
    close_account(scope, NODE, own) -- rule 6: higher term
    own = nil
  end
  -- Outside the recovery wait a claim may be of permits that are another node's by now.
  local claims = said.believed > (own and own.granted or said.returned) -- rule 9: more than was granted
  -- rule 8: claims in the wait
  if claims and NOW >= FROM then -- rule 8: claims after the wait
    if own then close_account(scope, NODE, own) end
    return @status(lost)
  end
  if not own then
    own = open_account(scope, said)
    scope.own = own
  elseif said.seq >= own.seq then -- rule 12: older statement
    local begun = math.max(0, said.started - own.started)
    scope.begun, scope.started, own.started = scope.begun + begun, scope.started + begun, own.started + begun
    if begun > 0 then scope.begun_at = NOW - 1000 * said.start_age end -- rule 21: age
    count(scope, own, -1)
    local waited = waiting_at(own) > 0
    own.seq, own.asked = said.seq, said.asked
    own.granted = math.max(own.granted, said.believed) -- rule 10: claims before returns
    if said.returned > own.returned then own.ended_at = NOW end
    own.returned = math.max(own.returned, said.returned)
    -- Else a node that gives back and asks again would overtake those that came meanwhile.
    if not waited and waiting_at(own) > 0 then own.served = next_tick(scope) end
  else -- a late one, or a keeper's
    own.lease_end = NOW + LEASE -- rule 12: lease of an older statement
    return @status(ok)
  end
  -- What it was granted since is pending, too.
  -- rule 22: granted since
  own.pending = math.min(held_by(own), said.pending + math.max(0, own.granted - said.believed))
  own.resting = said.resting
  count(scope, own, 1)
  own.lease_end = NOW + LEASE
  scope.due = math.min(scope.due, own.lease_end)
  own.held_since, own.waiting_since = NOW - 1000 * said.held_age, NOW - 1000 * said.wait_age
  @own.(limit) = @said.(limit)
  return @status(ok)
end

local function pack_reply(scope, status, own)
  local force, learned = scope.force, scope.learned
  local @reply_(reply) = @zeros(reply)
  reply_status, reply_limit, reply_held = status, force.limit, scope.held
  reply_available = force.limit - scope.held - scope.waiting
  reply_reason = scope.reason
  reply_retry_in, reply_backoff = scope.retry_in or -1, scope.backoff_begun or -1
  local wants_feedback, is_backing_off = force.adaptive == 1 or (own and own.failures > 0), false
  if learned then
    -- After a backoff also until it is known that the site answers again.
    wants_feedback = wants_feedback or learned.backoff > 0 or learned.answered < learned.backoff_end
    wants_feedback = @hook(wants_feedback) or wants_feedback
    is_backing_off = NOW < pause_end(learned)
    reply_paused_at, reply_pause_length = learned.paused_at, learned.pause_length
    if learned.answered > 0 then reply_answered_ago = math.max(0, NOW - learned.answered) end
  end
  if is_paced(scope) then
    reply_gap = math.max(force.delay * (1 - force.jitter), force.interval)
    reply_gap = math.max(reply_gap, (@hook(pace)))
  end
  if wants_feedback then reply_wants_feedback = 1 end
  if wants_feedback or is_paced(scope) or force.paused or is_backing_off then reply_is_counted = 1 end
  if own then
    reply_term, reply_granted = own.term, own.granted
    -- Other nodes ask for less than this one, and no operator has decided.
    local is_stricter = not force.by and (own.concurrency > scope.concurrency or own.delay < scope.delay
      or own.interval < scope.interval)
    if is_stricter then reply_is_stricter = 1 end
  end
  local reply = struct.pack('@format(reply)', @reply_(reply)) .. pack_findings(scope)
  return scope.problem and reply .. scope.problem or reply
end

-- Answers one statement.
function slow_path(key, queue, text, state, account, learned)
  local said = read_statement(text)
  if not said then return pack_refusal(@status(refused), '') end
  local scope = read_scope(key, queue, state, account, learned)
  if scope.job == false then
    read_jobs(scope)
  elseif scope.job ~= JOB and is_in_use(scope) then
    count_jobs(scope, JOB)
  else
    scope.job = JOB
  end
  local before = scope.own
  local returned = before and before.returned
  scope.used, scope.wanted = scope.held, scope.held + scope.waiting
  local status = apply_statement(scope, said)
  local own = scope.own
  tighten(scope, own or said)
  apply_limit(scope)
  -- Feedback counts only with the permits that it is about: a statement heard twice reports once.
  if said.feedback and own and own == before and own.returned > returned then -- rule 14: counts once
    apply_feedback(scope, said.feedback)
  end
  promote(scope)
  -- An account with nothing in it is closed: the next one has a higher term.
  -- rule 15: empty account
  if own and own.returned == own.granted and own.asked <= own.granted and own.resting == 0 then
    close_account(scope, NODE, own)
  end
  local reply = pack_reply(scope, status, own)
  write_scope(scope)
  return reply
end
