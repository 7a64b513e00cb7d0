-- Shared by `sync`, `evict`, `inspect` and `forget`: `promote`, and the order of the queue. Besides `promote`
-- only `fast_path` grants, and it must do exactly what `promote` would.
-- Within a job, the next permit goes to the waiting node that holds the fewest, and among those to the one
-- that was last granted a permit, or began to wait, longest ago: max-min fairness (Bertsekas and Gallager,
-- Data Networks, 1987) of a site's permits. So a node that wants one permit always has it, even if another
-- node floods the site.

@include(shared/entries)
@include(shared/jobs)
@include(shared/learned)

local function notify(node, ...)
  redis.call('PUBLISH', PREFIX .. ':node:' .. node, table.concat({ ... }, ' '))
end

@include(shared/policies)
@include(shared/scope)
@include(shared/limit)

-- A score in the queue is a double: permits held (13 bits), then the tick `served` (40 bits: 30 years of
-- 1,000 a second). Nodes that hold 8,191 or more are served in the order of their last grants.
local TICKS = 2 ^ 40

-- A member of the queue is a node, a zero byte and its job.
local function member_of(node, entry)
  return node .. '\0' .. entry.job
end

local function node_of(member)
  return string.match(member, '^(.*)%z') or ''
end

local function next_tick(scope)
  scope.tick = scope.tick + 1
  return scope.tick
end

-- Puts a waiting node into the queue, or moves it there; takes any other node out.
local function requeue(scope, node, entry)
  if entry.requested > entry.granted then
    -- promise: longest unserved
    local score = math.min(held_by(entry), 8191) * TICKS + entry.served -- promise: fewest held
    local is_new = redis.call('ZADD', scope.queue, score, member_of(node, entry)) == 1
    if is_new then redis.call('PEXPIRE', scope.queue, KEPT) end
    entry.is_queued = true
  elseif entry.is_queued then
    redis.call('ZREM', scope.queue, member_of(node, entry))
    entry.is_queued = false
  end
end

-- Adds an entry to the scope's totals (`sign` 1), or takes it out of them (-1).
local function count(scope, entry, sign)
  local held, waiting = sign * held_by(entry), sign * waiting_at(entry)
  scope.held, scope.waiting = scope.held + held, scope.waiting + waiting
  scope.unstarted = scope.unstarted + sign * entry.unstarted
  scope.suspended = scope.suspended + sign * entry.suspended
  note_job(scope, entry, held, waiting)
end

-- Takes an entry out of the scope's totals and the queue.
local function close_entry(scope, node, entry)
  count(scope, entry, -1)
  -- A node that is gone may have begun these requests without a report.
  -- rule 22: node that is gone
  if entry.unstarted > 0 then scope.begun, scope.begun_at = scope.begun + entry.unstarted, NOW end
  -- promise: queue of the dead
  if entry.is_queued then redis.call('ZREM', scope.queue, member_of(node, entry)) end
  scope.due = math.min(scope.due, NOW + LOOSENING) -- the limit may have been this entry's
  if node == NODE then
    scope.own = nil
  else
    scope.others[node] = false
  end
end

-- Adds up again what the entries hold and which limit they ask for. Those whose leases are over do not count:
-- `on_ended` has each of them.
local function add_up(scope, on_ended)
  local held, waiting, unstarted, suspended, due = 0, 0, 0, 0, math.huge
  scope.concurrency = 0 -- rule 23: ends with its entries
  for_each_entry(scope, function(node, entry)
    if entry.lease_end <= NOW then
      on_ended(node, entry)
    else
      held, waiting = held + held_by(entry), waiting + waiting_at(entry)
      unstarted, suspended = unstarted + entry.unstarted, suspended + entry.suspended
      due = math.min(due, entry.lease_end)
      tighten(scope, entry)
    end
  end)
  scope.held, scope.waiting, scope.unstarted, scope.suspended = held, waiting, unstarted, suspended
  scope.due = due
end

-- Closes the entries whose leases are over, and adds up the others; or leaves that to a later call.
local function close_ended_entries(scope)
  if not read_entries(scope) then return end
  add_up(scope, function(node, entry)
    close_entry(scope, node, entry)
  end)
  apply_limit(scope)
  if scope.jobs or scope.job == true then count_jobs(scope) end
end

local function is_paced(scope)
  local interval = math.max(scope.effective.delay, scope.effective.interval)
  interval = math.max(interval, (@hook(interval)))
  return interval > 0
end

-- When the next start may be, by the delay that is effective now.
local function earliest_by_delay(scope)
  return scope.last_start + scope.effective.delay * (1 + scope.effective.jitter * scope.chance)
end

-- When the next start may be, by the rate that is effective now: the generic cell rate algorithm (ITU-T
-- I.371). An arrival time that a slower rate has set is at most this rate's burst ahead.
local function earliest_by_rate(scope)
  local effective = scope.effective
  local arrival = math.min(scope.next_at_rate, NOW + effective.burst * effective.interval)
  return arrival - (effective.burst - 1) * effective.interval
end

-- Three gates. A start needs an open site, with room, and must be due. Each gate returns the reason why it
-- holds starts back: a row of `model/reasons.py`, or of a policy.

-- When the site opens, and what closes it until then. A node's first try need not wait for some pauses.
local function opens(scope, is_first_try)
  local learned = scope.learned
  if scope.effective.paused then return math.huge, @reason(paused) end -- promise: operator's pause
  local open_at = learned and pause_end(learned, is_first_try) or 0
  if open_at <= FROM then return FROM, @reason(recovery) end -- promise: no start in a backoff
  local closed_by = @reason(backoff)
  closed_by = @hook(shut_by) or closed_by
  return open_at, closed_by
end

-- How many may hold a permit, and what sets that number.
local function room(scope, is_first_try)
  local effective = scope.effective
  local learned = scope.learned
  -- promise: never more than the limit
  local most, reason = effective.limit, effective.limit < effective.concurrency and scope.lowered_by
    or @reason(full)
  if learned then return least_room(learned, most, reason, is_first_try) end
  return most, reason
end

-- How many starts are due by one interval, for how long none is (ms; infinite: that depends on unstarted
-- requests), and the reason. Granted starts that have not begun count as if they began now: whenever they
-- begin, the interval is kept.
local function due_at(scope, interval, earliest, reason, burst)
  if interval == 0 then return math.huge, 0, reason end
  burst = burst or 1
  local free = NOW < earliest and 0 or math.min(burst, math.floor((NOW - earliest) / interval) + 1)
  local starts = free - scope.unstarted -- rule 22: unstarted requests
  if starts > 0 then
    return starts, 0, reason -- mutant 0 -> 1: the longer wait counts
  end
  return 0, scope.unstarted < burst and earliest + scope.unstarted * interval - NOW or math.huge, reason
end

-- Combines what is due at two intervals: the fewer starts, and the longer wait with its reason.
local function slower(starts, left, reason, its_starts, its_left, its_reason)
  if its_left > left then left, reason = its_left, its_reason end
  return math.min(starts, its_starts), left, reason
end

-- How many starts are due, for how long none is, and which interval decides it: the delay, the rate or a
-- policy's.
local function due(scope)
  local effective = scope.effective
  local starts, left, paced_by = due_at(scope, effective.delay, earliest_by_delay(scope), @reason(delay))
  starts, left, paced_by = slower(starts, left, paced_by,
    due_at(scope, effective.interval, earliest_by_rate(scope), @reason(rate), effective.burst))
  starts, left, paced_by = slower(starts, left, paced_by, due_at(scope, @hook(interval)))
  return starts, left, paced_by
end

-- Counts the starts that have begun since the last call, or may have. A node may report one late, with its
-- age.
local function count_begun(scope)
  if scope.begun == 0 then return end
  local begun_at = math.min(NOW, math.max(scope.begun_at, scope.granted_at))
  -- promise: delay
  scope.last_start, scope.chance = math.min(NOW, math.max(scope.last_start, begun_at)), 2 * RANDOM - 1
  -- promise: rate
  scope.next_at_rate = math.max(scope.next_at_rate, begun_at) + scope.begun * scope.effective.interval
  local learned = scope.learned
  if learned then @hook(on_started) end
end

-- Permits that may be granted now; if zero, also the reason, and for how long it holds (ms) if that depends
-- on time alone.
local function grantable(scope, is_first_try)
  local opens_at, closed_by = opens(scope, is_first_try)
  local permits, filled_by = room(scope, is_first_try)
  local free = permits - scope.held
  if NOW < opens_at then
    local is_only_time = free > 0 and opens_at < math.huge
    return 0, closed_by, is_only_time and opens_at - NOW or nil
  end
  if free <= 0 then return 0, filled_by end
  if not is_paced(scope) then return free end
  local starts, wait, paced_by = due(scope)
  if starts == 0 then return 0, paced_by, wait < math.huge and wait or nil end
  return math.min(free, starts)
end

-- Grants permits to an entry. This does not extend its lease, as the node counts its own deadline from its
-- last update.
local function grant(scope, entry, permits)
  entry.granted, entry.served = entry.granted + permits, next_tick(scope)
  scope.granted_at = NOW
  scope.held, scope.waiting = scope.held + permits, scope.waiting - permits
  entry.unstarted, scope.unstarted = entry.unstarted + permits, scope.unstarted + permits
  note_job(scope, entry, permits, -permits)
end

-- Grants to the queue while permits are free: each time to its first node, as many as keep it first.
local function grant_to_queue(scope, free)
  local function grant_to_first(most)
    local member, next_member, next_score, _
    if scope.jobs then -- promise: jobs share permits
      member, most = first_of_jobs(scope), 1
    else
      member, _, next_member, next_score = unpack(redis.call('ZRANGE', scope.queue, 0, 1, 'WITHSCORES'))
    end
    if not member then -- the queue was lost: evicted, or expired in use
      close_ended_entries(scope)
      return for_each_entry(scope, function(waiting, entry)
        requeue(scope, waiting, entry)
      end)
    end
    local node = node_of(member)
    local entry = entry_of(scope, node)
    if entry and waiting_at(entry) > 0 then
      local ahead = next_member and math.floor(next_score / TICKS) - held_by(entry) or most
      grant(scope, entry, math.min(most, waiting_at(entry), math.max(1, ahead)))
      requeue(scope, node, entry)
      entry.has_changed = true
    else
      redis.call('ZREM', scope.queue, member)
    end
  end

  local reason, wait
  repeat
    grant_to_first(free)
    looked_at = looked_at + 1
    free, reason, wait = grantable(scope)
  until free <= 0 or scope.waiting <= 0 or has_looked_enough()
  for node, entry in pairs(scope.others or {}) do
    if entry and entry.has_changed then -- promise: grants are published
      notify(node, 'granted', entry.lease_id, entry.granted, name_of(scope.key))
    end
  end
  if free > 0 then wait = 0 end -- the rest is granted in the next call
  return reason, wait
end

-- Notifies the first node in the queue of when to ask again, once: the others have no reason to ask. `wait`:
-- 0 if this call has left something to the next one.
local function notify_when_to_ask(scope, wait)
  local first = node_of(redis.call('ZRANGE', scope.queue, 0, 0)[1] or '')
  if first == NODE then
    scope.retry_in = wait
  elseif first ~= '' and (scope.notified ~= first or wait == 0) then
    notify(first, 'retry', math.ceil(wait), name_of(scope.key))
  end
  scope.notified = first -- promise: the first is notified
end

-- Closes entries whose lease is over; then, while a permit is free and nothing forbids it, grants to the
-- first node in the queue and notifies it.
local function promote(scope)
  -- promise: leases of the dead
  if NOW >= scope.due then close_ended_entries(scope) end
  count_begun(scope)
  local learned = scope.learned
  local own = scope.own
  if learned then @hook(before_grants) end
  if scope.jobs then scope.jobs.is_paced = is_paced(scope) end
  local own_waits = own and waiting_at(own) or 0
  local free, reason, wait = grantable(scope)
  if free > 0 and own_waits > 0 and scope.waiting == own_waits then -- nobody else waits
    grant(scope, own, math.min(free, own_waits))
    free, reason, wait = grantable(scope)
  end
  if own then requeue(scope, NODE, own) end
  if free > 0 and scope.waiting > 0 then reason, wait = grant_to_queue(scope, free) end
  if NOW >= scope.due then wait = 0 end -- the entries are closed in the next call
  scope.reason = scope.waiting > 0 and reason or 0
  if wait and scope.waiting > 0 then
    notify_when_to_ask(scope, wait) -- promise: when to ask again
  else
    scope.notified = ''
  end
end
