-- Reads scopes and changes nothing.
-- KEYS: epoch, rules; then for each scope: scope, queue. ARGV: see `clock`; no node.
-- Reply: a `ServerState`, as a JSON object; then for each scope one of what an `Inspection` says (times in
--        seconds, those in limits of nodes in milliseconds), or nothing for one that cannot be read.

@include(shared/scopes)
@include(shared/promote)

local function left(moment)
  return math.max(0, moment - NOW) / 1000
end

local function age(since)
  return math.max(0, NOW - since) / 1000
end

local function member(node, account)
  local held, waiting, asks_for = held_by(account), waiting_at(account), {}
  @asks_for.(limit) = @account.(limit)
  return {
    node = node, held = held, waiting = waiting, oldest = held > 0 and age(account.held_since) or 0,
    longest_wait = waiting > 0 and age(account.waiting_since) or 0, lease_left = left(account.lease_end),
    asks_for = asks_for, job = account.job, weight = tonumber(account.weight),
  }
end

-- Those that wait first, in the order of the queue.
local function members_of(scope)
  local members, places = {}, {}
  for place, queued in ipairs(redis.call('ZRANGE', scope.queue, 0, -1)) do
    places[node_of(queued)] = place
  end
  for_each_account(scope, function(node, account)
    if account.lease_end > NOW then table.insert(members, member(node, account)) end
  end)
  table.sort(members, function(one, other)
    local place, other_place = places[one.node] or math.huge, places[other.node] or math.huge
    return place < other_place or (place == other_place and one.node < other.node)
  end)
  return members
end

local function inspection(key, queue)
  local scope = read_scope(key, queue, read_fields(key))
  apply_limit(scope)
  local force, learned = scope.force, scope.learned or nothing_learned()
  return cjson.encode({
    limit = force.limit, limit_max = force.concurrency, delay = force.delay / 1000,
    interval = force.interval / 1000, burst = force.burst,
    next_start = left(math.max(earliest_by_delay(scope), earliest_by_rate(scope))),
    backoff_left = left(learned.backoff_end), backoff_last = learned.backoff / 1000,
    down_for = learned.is_down == 1 and age(learned.failing_since) or nil, paused = force.paused or false,
    set_by = force.by, started = scope.started, members = members_of(scope),
  })
end

local weights, fields = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local name = string.match(fields[i], '^share:(.*)')
  if name then weights[name] = tonumber(fields[i + 1]) end
end
local server = { recovery_left = left(FROM), silent_for = ADVANCE / 1000, weights = weights }
local replies = { cjson.encode(server) }
for i = 3, #KEYS, 2 do
  local is_read, reply = pcall(inspection, KEYS[i], KEYS[i + 1])
  if not is_read then problem_of(reply) end -- raises it if it is the server's
  replies[(i + 1) / 2] = is_read and reply
end
return replies
