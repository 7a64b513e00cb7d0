-- Reads scopes and changes nothing.
-- KEYS: epoch, rules; then for each scope: scope, queue. ARGV: see `clock`; no node.
-- Reply: how long nothing is granted from now on, as the server may have lost its data (ms);
--        for how long no node has called, by the server's wall clock (ms);
--        the weights of jobs that operators have set: name and weight (as text), by turns;
--        then for each scope: the limit in force (0: idle, and no operator has set one); the most that it may
--        grow to, if it is adaptive; delay (ms); interval (ms, as text); burst; time until the next
--        start, until the backoff ends, the last backoff that the site did not set itself, and for how
--        long it has not responded if it is down (ms, -1: it is not); 1 if paused; which operator has set
--        a rule (empty: none); requests started since the scope was idle;
--        the nodes, those that wait first, in the order of the queue. Each node is: name, permits held,
--        requests waiting, age of the oldest that holds one, of the oldest that waits; lease left (ms);
--        and the limit that it asks for: concurrency, delay (ms), jitter (as text), 1 if adaptive, interval
--        (ms, as text), burst; its job, and the job's weight (as text).
--        For a scope that cannot be read instead: what is wrong.

@include(shared/scopes)
@include(shared/promote)

local function left(moment)
  return math.max(0, math.ceil(moment - NOW))
end

local function age(since)
  return math.max(0, math.floor(NOW - since))
end

local function row_of(node, account)
  local held, waiting = held_by(account), waiting_at(account)
  return {
    node, held, waiting, held > 0 and age(account.held_since) or 0,
    waiting > 0 and age(account.waiting_since) or 0, left(account.lease_end), account.concurrency,
    math.ceil(account.delay), tostring(account.jitter), account.adaptive,
    string.format('%.9g', account.interval), account.burst, account.job, tostring(account.weight),
  }
end

local function rows_of(scope)
  local rows, places = {}, {}
  for place, member in ipairs(redis.call('ZRANGE', scope.queue, 0, -1)) do
    places[node_of(member)] = place
  end
  for_each_account(scope, function(node, account)
    if account.lease_end > NOW then table.insert(rows, row_of(node, account)) end
  end)
  table.sort(rows, function(one, other)
    local place, other_place = places[one[1]] or math.huge, places[other[1]] or math.huge
    return place < other_place or (place == other_place and one[1] < other[1])
  end)
  return rows
end

local NOTHING = { backoff_end = 0, backoff = 0, is_down = 0 }
local function reply_of(key, queue)
  local scope = read_scope(key, queue, read_fields(key))
  apply_limit(scope)
  local force = scope.force
  local learned = scope.learned or NOTHING
  return {
    force.limit, force.concurrency, math.ceil(force.delay), string.format('%.9g', force.interval),
    force.burst, left(math.max(earliest_by_delay(scope), earliest_by_rate(scope))),
    left(learned.backoff_end), math.ceil(learned.backoff),
    learned.is_down == 1 and age(learned.failing_since) or -1, force.paused and 1 or 0, force.by or '',
    scope.started, rows_of(scope),
  }
end

local shares, fields = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local name = string.match(fields[i], '^share:(.*)')
  if name then
    table.insert(shares, name)
    table.insert(shares, fields[i + 1])
  end
end
local replies = { left(FROM), ADVANCE, shares }
for i = 3, #KEYS, 2 do
  local is_read, reply = pcall(reply_of, KEYS[i], KEYS[i + 1])
  replies[(i + 5) / 2] = is_read and reply or problem_of(reply)
end
return replies
