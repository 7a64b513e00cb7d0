-- Part of `sync`: answers any statement.

-- A statement whose numbers make sense; nil: its feedback makes none.
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
  return {
    term = said.term, seq = said.seq, asked = said.asked, granted = said.believed,
    -- A node may go on under a term whose account was closed when it was empty: these are counted.
    returned = said.returned, started = said.started, pending = 0,
    lease_end = 0, held_since = 0, waiting_since = 0, concurrency = 0, delay = 0, jitter = 0,
    adaptive = 0, interval = 0, burst = 1, job = JOB, weight = WEIGHT,
    -- A newcomer counts as served now. Else nodes that come and go would starve those that wait.
    served = next_tick(scope), is_queued = false,
  }
end

-- Brings the caller's account up to what it says. Returns the status of the reply.
local function hear(scope, said)
  local own = scope.own
  if own and said.term < own.term then return @status(old) end
  if own and said.term > own.term then
    close_account(scope, NODE, own)
    own = nil
  end
  -- Outside the recovery wait a claim may be of permits that are another node's by now.
  local claims = said.believed > (own and own.granted or said.returned)
  if claims and NOW >= FROM then
    if own then close_account(scope, NODE, own) end
    return @status(lost)
  end
  if not own then
    own = open_account(scope, said)
    scope.own = own
  elseif said.seq >= own.seq then
    scope.held, scope.waiting = scope.held - held_by(own), scope.waiting - waiting_at(own)
    scope.pending = scope.pending - own.pending
    local begun = math.max(0, said.started - own.started)
    scope.begun, scope.started, own.started = scope.begun + begun, scope.started + begun, own.started + begun
    if scope.jobs and begun > 0 then charge(scope, own, begun) end
    note_job(scope, own, -held_by(own), -waiting_at(own))
    local waited = waiting_at(own) > 0
    own.seq, own.asked = said.seq, said.asked
    own.granted = math.max(own.granted, said.believed)
    own.returned = math.max(own.returned, said.returned)
    -- Else a node that asks again while it gives back would pass those that came meanwhile.
    if not waited and waiting_at(own) > 0 then own.served = next_tick(scope) end
  else
    return @status(ok)
  end
  -- What it was granted since is pending, too.
  own.pending = math.min(held_by(own), said.pending + math.max(0, own.granted - said.believed))
  scope.held, scope.waiting = scope.held + held_by(own), scope.waiting + waiting_at(own)
  scope.pending = scope.pending + own.pending
  note_job(scope, own, held_by(own), waiting_at(own))
  own.lease_end = NOW + LEASE
  scope.due = math.min(scope.due, own.lease_end)
  own.held_since, own.waiting_since = NOW - 1000 * said.held_age, NOW - 1000 * said.wait_age
  @own.(limit) = @said.(limit)
  return @status(ok)
end

local function pack_reply(scope, status, own)
  local force, learned = scope.force, scope.learned
  -- After a backoff also until it is known that the site answers again.
  local wants_feedback = force.adaptive or (learned and (learned.backoff + learned.failures > 0
    or learned.answered < learned.backoff_end))
  local is_counted = wants_feedback or is_paced(scope) or force.paused
    or (learned and NOW < learned.backoff_end)
  -- Other nodes ask for less than this one, and no operator has decided.
  local is_stricter = own and not force.by and (own.concurrency > scope.concurrency or own.delay < scope.delay
    or own.interval < scope.interval)
  local down_for = learned and learned.is_down == 1 and math.max(0, NOW - learned.failing_since) or -1
  local answered_ago = learned and learned.answered > 0 and math.max(0, NOW - learned.answered) or -1
  local reply = struct.pack('@format(reply)', status, own and own.term or 0, own and own.granted or 0,
    force.limit - scope.held - scope.waiting, force.limit, is_counted and 1 or 0,
    is_paced(scope) and 1 or 0, wants_feedback and 1 or 0, is_stricter and 1 or 0,
    scope.retry_in or -1, scope.backoff_begun or -1, down_for, answered_ago, scope.held,
    learned and learned.paused_at or 0)
  return scope.problem and reply .. scope.problem or reply
end

-- Answers one statement.
function serve_any(key, queue, text, state, account, learned)
  local said = read_statement(text)
  if not said then return pack_refusal(@status(refused), '') end
  local scope = read_scope(key, queue, state, account, learned)
  if scope.job == false then
    read_jobs(scope)
  elseif scope.job ~= JOB and scope.held + scope.waiting > 0 then
    count_jobs(scope, JOB)
  else
    scope.job = JOB
  end
  local before = scope.own
  local returned = before and before.returned
  scope.used, scope.wanted = scope.held, scope.held + scope.waiting
  local status = hear(scope, said)
  local own = scope.own
  tighten(scope, own or said)
  apply_limit(scope)
  -- Feedback counts only with the permits that it is about: a statement heard twice reports once.
  if said.feedback and own and own == before and own.returned > returned then
    hear_feedback(scope, said.feedback)
  end
  promote(scope)
  -- An account with nothing in it is closed: the next one has a higher term.
  if own and own.returned == own.granted and own.asked <= own.granted then
    close_account(scope, NODE, own)
  end
  local reply = pack_reply(scope, status, own)
  write_scope(scope)
  return reply
end
