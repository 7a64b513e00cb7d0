-- Hears one node's statements about its accounts, and says what it is granted. Safe to send twice, late,
-- and in any order.
-- KEYS: epoch, rules; then for each scope: scope, queue.
-- ARGV: see `clock`; the node; the epoch's id; then for each scope fifteen packed numbers: term, seq,
--       asked, returned, believed, started, pending, age of the oldest holder and of the oldest waiter
--       (ms), concurrency, delay (ms), jitter, 1 if adaptive, interval (ms), burst; and after them feedback
--       as text, if there is any (see `feedback`).
-- Reply: "epoch" if the id is not the present one, and nothing was done; else for each scope twelve
--        packed numbers: status (0 ok, 1 lost, 2 old, 3 refused, 4 unreadable), term, granted, permits that
--        are free (less those waited for), the limit in force, 1 if no permit is to be handed on, 1 if
--        starts are spaced by a delay or a rate, 1 if feedback is wanted for ordinary responses too; when to
--        ask again, the backoff that this call has started, for how long the site has not responded if it is
--        down, how long ago the youngest request began that is known to be answered well (ms, -1: none);
--        and after them, as text, what is wrong with what the server knows of the scope, if anything is.

local STATEMENT_BYTES = 120
local MOST = 10 ^ 12 -- of any number that is said: as milliseconds 31 years
local REFUSED, UNREADABLE = 3, 4

local function read_statement(text)
  if #text < STATEMENT_BYTES then return nil end
  local said = {
    term = 0, seq = 0, asked = 0, returned = 0, believed = 0, started = 0, pending = 0,
    held_age = 0, wait_age = 0, concurrency = 0, delay = 0, jitter = 0, adaptive = 0, interval = 0, burst = 0,
    feedback = false,
  }
  said.term, said.seq, said.asked, said.returned, said.believed, said.started, said.pending,
    said.held_age, said.wait_age, said.concurrency, said.delay, said.jitter, said.adaptive,
    said.interval, said.burst = struct.unpack('>ddddddddddddddd', text)
  if #text > STATEMENT_BYTES then said.feedback = read_feedback(string.sub(text, STATEMENT_BYTES + 1)) end
  return said
end

-- Whether a node that follows the rules may say this. Else a number is not whole or too large, or two
-- contradict each other.
local function makes_sense(said)
  local fractions = said.term % 1 + said.seq % 1 + said.asked % 1 + said.returned % 1
    + said.believed % 1 + said.started % 1 + said.pending % 1
    + said.concurrency % 1 + said.burst % 1 -- not a number if one is none
  return fractions == 0 and said.feedback ~= nil and said.term >= 1 and said.seq >= 1 and said.returned >= 0
    and said.pending >= 0 and said.pending <= said.believed - said.returned
    and said.returned <= said.believed and said.believed <= said.asked and said.started >= 0
    and said.concurrency >= 1 and said.burst >= 1
    and said.delay >= 0 and said.jitter >= 0 and said.jitter <= 1 and said.interval >= 0
    and said.held_age >= 0 and said.wait_age >= 0
    and math.max(said.term, said.seq, said.asked, said.started, said.concurrency, said.delay,
      said.interval, said.burst) <= MOST
end

local function open_account(scope, said)
  return {
    term = said.term, seq = said.seq, asked = said.asked, granted = said.believed,
    -- A node may go on under a term whose account was closed when it was empty: these are counted.
    returned = said.returned, started = said.started, pending = 0,
    lease_end = 0, held_since = 0, waiting_since = 0, concurrency = 0, delay = 0, jitter = 0,
    adaptive = 0, interval = 0, burst = 1,
    -- A newcomer counts as served now. Else nodes that come and go would starve those that wait.
    served = next_tick(scope), is_queued = false,
  }
end

-- Brings the caller's account up to what it says. Returns the status of the reply.
local function hear(scope, said)
  local own = scope.own
  if own and said.term < own.term then return 2 end
  if own and said.term > own.term then
    close_account(scope, NODE, own)
    own = nil
  end
  -- Outside the recovery wait a claim may be of permits that are another node's by now.
  local claims = said.believed > (own and own.granted or said.returned)
  if claims and NOW >= FROM then
    if own then close_account(scope, NODE, own) end
    return 1
  end
  if not own then
    own = open_account(scope, said)
    scope.own = own
  elseif said.seq >= own.seq then
    scope.held, scope.waiting = scope.held - held_by(own), scope.waiting - waiting_at(own)
    scope.pending = scope.pending - own.pending
    local begun = math.max(0, said.started - own.started)
    scope.begun, scope.started, own.started = scope.begun + begun, scope.started + begun, own.started + begun
    local waited = waiting_at(own) > 0
    own.seq, own.asked = said.seq, said.asked
    own.granted = math.max(own.granted, said.believed)
    own.returned = math.max(own.returned, said.returned)
    -- Else a node that asks again while it gives back would pass those that came meanwhile.
    if not waited and waiting_at(own) > 0 then own.served = next_tick(scope) end
  else
    return 0
  end
  -- What it was granted since is pending, too.
  own.pending = math.min(held_by(own), said.pending + math.max(0, own.granted - said.believed))
  scope.held, scope.waiting = scope.held + held_by(own), scope.waiting + waiting_at(own)
  scope.pending = scope.pending + own.pending
  own.lease_end = NOW + LEASE
  scope.due = math.min(scope.due, own.lease_end)
  own.held_since, own.waiting_since = NOW - said.held_age, NOW - said.wait_age
  own.concurrency, own.delay, own.jitter = said.concurrency, said.delay, said.jitter
  own.adaptive, own.interval, own.burst = said.adaptive, said.interval, said.burst
  return 0
end

local function has_evicted()
  return evicted ~= '-1' and string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)') ~= evicted
end

local function pack_reply(scope, status, own)
  local force, learned = scope.force, scope.learned
  -- After a backoff also until it is known that the site answers again.
  local wants_feedback = force.adaptive or (learned and (learned.backoff + learned.failures > 0
    or learned.answered < learned.backoff_end))
  local is_counted = wants_feedback or is_paced(scope) or force.paused
    or (learned and NOW < learned.backoff_end)
  local down_for = learned and learned.is_down == 1 and math.max(0, NOW - learned.failing_since) or -1
  local answered_ago = learned and learned.answered > 0 and math.max(0, NOW - learned.answered) or -1
  local reply = struct.pack('>dddddddddddd', status, own and own.term or 0, own and own.granted or 0,
    force.limit - scope.held - scope.waiting, force.limit, is_counted and 1 or 0,
    is_paced(scope) and 1 or 0, wants_feedback and 1 or 0, scope.retry_in or -1,
    scope.backoff_begun or -1, down_for, answered_ago)
  return scope.problem and reply .. scope.problem or reply
end

local function pack_refusal(status, problem)
  return struct.pack('>dddddddddddd', status, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1) .. problem
end

-- Answers one statement.
local function serve(key, queue, text)
  local said = read_statement(text)
  if not said or not makes_sense(said) then return pack_refusal(REFUSED, '') end
  local scope = read_scope(key, queue)
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

if EPOCH ~= ARGV[3] or has_evicted() then return { 'epoch' } end
if IS_CLOCK_LATE then write_clock() end
local replies = {}
for i = 3, #KEYS, 2 do
  local is_served, reply = pcall(serve, KEYS[i], KEYS[i + 1], ARGV[(i + 5) / 2])
  replies[(i - 1) / 2] = is_served and reply or pack_refusal(UNREADABLE, problem_of(reply))
end
return replies
