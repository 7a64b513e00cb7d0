-- Reads scopes and changes nothing.
-- KEYS: epoch, rules, index; then for each scope: scope, queue. ARGV: see `clock`; no node; "kept" leaves out
-- scopes without a key.
-- Reply: the time until permits are granted, and the time since a node last called (s, packed); then for each
--        scope a list of three: the records `inspection`, `limit` (the effective one) and `findings`, packed
--        together; the operator who has set a rule (empty: none); and its nodes, each with its name, its job,
--        and the records `member` and `limit` (what its requests ask for). Nil for a scope that cannot be
--        read, or is left out. Fewer scopes than were named if they have many nodes.

@include(semaphore_middleware.core:shared/common)
@include(semaphore_middleware.core:shared/promote)

local function left(moment)
  return math.max(0, moment - NOW) / 1000
end

local function age(since)
  return math.max(0, NOW - since) / 1000
end

local function row_of(node, entry)
  local held, waiting = held_by(entry), waiting_at(entry) + entry.suspended
  local oldest = held > 0 and age(entry.held_since) or 0
  local longest_wait = waiting > 0 and age(entry.waiting_since) or 0
  local lease_left, failures = left(entry.lease_end), entry.failures
  local numbers = struct.pack('@format(member)@format(limit)', @(member), @entry.(limit))
  return { node, entry.job, numbers }
end

-- The nodes of a scope: first those that wait, in the order of the queue.
local function rows_of(scope)
  local rows, order = {}, {}
  for rank, member in ipairs(redis.call('ZRANGE', scope.queue, 0, -1)) do
    order[node_of(member)] = rank
  end
  for_each_entry(scope, function(node, entry)
    if entry.lease_end > NOW then table.insert(rows, row_of(node, entry)) end
  end)
  table.sort(rows, function(one, other)
    local rank, other_rank = order[one[1]] or math.huge, order[other[1]] or math.huge
    return rank < other_rank or (rank == other_rank and one[1] < other[1])
  end)
  return rows
end

local NOTHING = nothing_learned()

-- The reason why no request may start now (0: none), and for how long (ms; -1: unknown).
local function held_back_by(scope)
  local opens_at, closed_by = opens(scope)
  if NOW < opens_at then return closed_by, opens_at < math.huge and opens_at - NOW or -1 end
  -- A site that a policy has shut stays shut until a request has tried it.
  local learned = scope.learned or NOTHING
  local shut_by = false
  shut_by = @hook(shut_by) or shut_by
  if shut_by then return shut_by, -1 end
  if scope.held + scope.waiting == 0 then return 0, -1 end
  local _, reason, wait = grantable(scope)
  return reason or 0, wait or -1
end

-- What the next call of a node will close is not shown, and does not count.
local function leave_out_ended_entries(scope)
  add_up(scope, function() end)
  if not is_in_use(scope) then scope.concurrency = 0 end -- as when it is idle
end

local function reply_of(key, queue)
  local scope = read_scope(key, queue, read_fields(key))
  if scope.is_new and ARGV[3] == 'kept' then return false end
  if NOW >= scope.due then leave_out_ended_entries(scope) end
  apply_limit(scope)
  local effective, learned = scope.effective, scope.learned or NOTHING
  local limit, limit_max = effective.limit, effective.concurrency
  local earliest = math.max(earliest_by_delay(scope), earliest_by_rate(scope))
  earliest = math.max(earliest, (select(2, @hook(interval))))
  local next_start = left(earliest)
  local backoff_left = left(pause_end(learned))
  local backoff_last = learned.backoff / 1000
  local kept = scope.is_new and 0 or 1
  local paused, started = effective.paused and 1 or 0, scope.started
  local reason, wait = held_back_by(scope)
  local numbers = struct.pack('@format(inspection)@format(limit)', @(inspection), @effective.(limit))
    .. pack_findings(scope)
  return { numbers, effective.by or '', rows_of(scope) }
end

local replies = { struct.pack('>dd', left(FROM), ADVANCE / 1000) }
for i = 4, #KEYS, 2 do
  local is_read, reply = pcall(reply_of, KEYS[i], KEYS[i + 1])
  if not is_read then problem_of(reply) end -- raises errors of the server
  replies[i / 2] = is_read and reply
  if has_looked_enough() then break end
end
return replies
