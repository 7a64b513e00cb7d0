-- Hears one node's statements about its accounts, and says what it is granted. Safe to send twice, late,
-- and in any order.
-- KEYS: epoch, rules; then for each scope: scope, queue.
-- ARGV: node, lease (ms), the clock's longest step (ms), a random number in [0, 1); the epoch's id; how
--       many keys the server had evicted in this epoch (empty: it never evicts); then for each scope:
--       term, seq, asked, returned, believed, started, age of the oldest holder and waiter (ms);
--       concurrency, delay (ms), jitter, 1 if adaptive, interval (ms), burst; feedback (see `feedback`).
-- Reply: "epoch" if the id is not the present one, and nothing was done; else for each scope: status
--        (ok, lost, old, refused), term, granted, permits that are free (less those waited for), 1 if
--        other nodes wait, the limit in force, 1 if each start counts, 1 if feedback is wanted for
--        ordinary responses too, when to ask again (ms, -1: no need), the backoff that this call has
--        started (ms, -1: none).

local HEAD, PER_SCOPE = 6, 15

local function has_evicted(expected)
  if expected == '' then return false end
  return string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)') ~= expected
end

local function read_statement(at)
  local function number(i)
    return tonumber(ARGV[at + i])
  end
  return {
    term = number(1), seq = number(2), asked = number(3), returned = number(4), believed = number(5),
    started = number(6), held_age = number(7), wait_age = number(8),
    concurrency = number(9), delay = number(10), jitter = number(11), adaptive = ARGV[at + 12] == '1',
    interval = number(13), burst = number(14), feedback = ARGV[at + 15],
  }
end

-- Whether no node that follows the rules could have said this: numbers that are missing, not whole,
-- beyond 2^53, or contradict each other.
local function is_refused(said)
  local sum = said.term and said.seq and said.asked and said.returned and said.believed and said.started
    and said.term + said.seq + said.asked + said.returned + said.believed + said.started
  local has_counts = sum and sum % 1 == 0 and said.term >= 1 and said.seq >= 1 and said.returned >= 0
    and said.started >= 0 and said.returned <= said.believed and said.believed <= said.asked
    and math.max(said.term, said.seq, said.asked, said.started) <= NO_LIMIT
  local has_limit = said.concurrency and said.delay and said.jitter and said.interval and said.burst
    and said.concurrency >= 1 and said.delay >= 0 and said.interval >= 0 and said.burst >= 1
    and said.jitter >= 0 and said.jitter <= 1 and math.max(said.delay, said.interval) < math.huge
  return not (has_counts and has_limit and said.held_age and said.wait_age)
end

-- Takes the longest delay asked for, and the longest minimum gap: one node may vary its delay, while
-- another one has a Crawl-delay from robots.txt, which is a minimum.
local function agree_on_delay(agreed, said)
  local least, said_least = agreed.delay * (1 - agreed.jitter), said.delay * (1 - said.jitter)
  if said.delay > agreed.delay or said_least > least then
    agreed.delay = math.max(agreed.delay, said.delay)
    agreed.jitter = 1 - math.max(least, said_least) / agreed.delay
  end
end

local function agree_on_rate(agreed, said)
  if said.interval == 0 then return end
  agreed.burst = agreed.interval == 0 and said.burst or math.min(agreed.burst, said.burst)
  agreed.interval = math.max(agreed.interval, said.interval)
end

-- The strictest limit asked for counts, until the scope is idle.
local function agree_on_limit(scope, said)
  local agreed = scope.agreed
  if agreed.concurrency == 0 then
    agreed.concurrency, agreed.delay, agreed.jitter = said.concurrency, said.delay, said.jitter
    agreed.adaptive, agreed.interval, agreed.burst = said.adaptive, said.interval, said.burst
    return
  end
  agreed.concurrency = math.min(agreed.concurrency, said.concurrency)
  agreed.adaptive = agreed.adaptive or said.adaptive
  if said.delay > 0 then agree_on_delay(agreed, said) end
  agree_on_rate(agreed, said)
end

local function open_account(scope, said)
  -- A newcomer counts as served now. Else nodes that come and go would starve those that wait.
  return {
    term = said.term, seq = said.seq, asked = said.asked, started = 0,
    granted = said.believed, returned = said.returned, served = next_tick(scope),
  }
end

-- Brings an account up to what its node says. Returns nil and why, if it cannot be.
local function heard(scope, account, said)
  if account and said.term < account.term then return nil, 'old' end
  if account and said.term > account.term then
    close_account(scope, NODE, account)
    account = nil
  end
  if not account then
    -- Outside the recovery wait a claim is of permits that may be another node's by now.
    if said.believed > said.returned and NOW >= EPOCH.from then return nil, 'lost' end
    account = open_account(scope, said)
    count(scope, account, 1)
    return account
  end
  if said.seq < account.seq then return account end
  if said.believed > account.granted and NOW >= EPOCH.from then
    close_account(scope, NODE, account)
    return nil, 'lost'
  end
  count(scope, account, -1)
  account.seq = said.seq
  account.granted = math.max(account.granted, said.believed)
  account.asked = said.asked
  account.returned = math.max(account.returned, math.min(said.returned, account.granted))
  count(scope, account, 1)
  return account
end

local function note_ages(scope, account, said)
  account.lease_end = NOW + LEASE
  scope.due = math.min(scope.due, account.lease_end)
  account.held_since, account.waiting_since = NOW - said.held_age, NOW - said.wait_age
  scope.started = scope.started + math.max(0, said.started - account.started)
  account.started = math.max(account.started, said.started)
  account.has_changed = true
end

-- Returns the status of the reply.
local function hear(scope, said)
  local account = scope.accounts[NODE]
  local returned = account and account.returned
  scope.used, scope.wanted = scope.held, scope.held + scope.waiting
  local after, why = heard(scope, account, said)
  if why ~= 'old' then agree_on_limit(scope, said) end
  apply_limit(scope)
  if not after then return why end
  scope.accounts[NODE] = after
  note_ages(scope, after, said)
  -- Feedback counts only with the permits that it is about: a statement heard twice reports once.
  if said.feedback ~= '' and after == account and after.returned > returned then
    hear_feedback(scope, said.feedback)
  end
  return 'ok'
end

-- An account with nothing in it is closed: a new one has a higher term.
local function close_if_empty(scope)
  local own = scope.accounts[NODE]
  if own and held_by(own) == 0 and waiting_at(own) == 0 then close_account(scope, NODE, own) end
end

local function reply(scope, status, own)
  local force, learned = scope.in_force, scope.learned
  local wants_feedback = force.adaptive or learned.backoff > 0 or learned.failures > 0
  local is_counted = wants_feedback or force.delay > 0 or force.interval > 0 or force.paused
    or NOW < learned.backoff_end
  local others_wait = scope.waiting > (own and waiting_at(own) or 0)
  return {
    status, own and own.term or 0, own and own.granted or 0, force.limit - scope.held - scope.waiting,
    others_wait and 1 or 0, force.limit, is_counted and 1 or 0, wants_feedback and 1 or 0,
    math.ceil(scope.retry_in or -1), math.ceil(scope.backoff_begun or -1),
  }
end

local function sync(key, queue, said)
  if is_refused(said) then return { 'refused', 0, 0, 0, 0, 0, 0, 0, -1, -1 } end
  local scope = read_scope(key, queue)
  local status = hear(scope, said)
  promote(scope)
  local own = scope.accounts[NODE]
  close_if_empty(scope)
  write_scope(scope)
  return reply(scope, status, own)
end

if EPOCH.id ~= ARGV[5] or has_evicted(ARGV[6]) then return { 'epoch' } end
write_clock(EPOCH)
local replies = {}
for i = 3, #KEYS, 2 do
  local at = HEAD + (i - 3) / 2 * PER_SCOPE
  replies[(i - 1) / 2] = sync(KEYS[i], KEYS[i + 1], read_statement(at))
end
return replies
