-- Queues new requests, forgets finished ones, gives unreadable ones back, takes others: in this order. If a
-- part fails, the later ones are not done.
-- KEYS: see shared/common.lua.
-- ARGV: 1 if the node works, otherwise its lease begins with the first request that it takes; 1 if it is
-- stopping, and takes no more, see `stop_dead_node`; number of new requests, and of each its place, data,
-- fingerprint (8 bytes, or none: queued in any case) and reservation (or none; without a place the
-- reservation becomes a dead letter); the finished requests, see `finish_all`; number of unreadable requests,
-- and of each its place, and its outcome: 3 if it becomes a dead letter at once; the requests that the node
-- has, see `compare`; the node's stats, see `write_stats`; most requests to take; most of these of one site;
-- 1 if one may be a poison request; 1 if it may be one that is taken alone; the sites to skip.
-- Reply: of each new request 1 if it is queued, 0 if its fingerprint is known, 2 if its site may have no more
-- pages; place, data and number of failed tries of each request taken; 1 if the node works and had lost its
-- lease, so that its requests went back to the queues, or if they did so before, which the node does not
-- know; the data of each new dead letter; how many requests could not be taken, as their data is lost.

@include(shared/common)
@include(shared/joined)
@include(shared/seen)

local works = next_number() == 1
if next_number() == 1 then redis.call('ZREM', nodes, node) end

-- Queues a request and adds its fingerprint, in one script: a crash between the two would lose the request.
local function add(place, data, fingerprint, reservation)
  if redis.call('HEXISTS', requests, place) == 1 then
    return 1 -- sent again, because our reply was lost
  end
  local reserved = reservation ~= '' and redis.call('HGET', claims, reservation)
  if reservation ~= '' and redis.call('HDEL', claims, reservation) == 0 then
    return 1 -- queued already, perhaps by another node
  elseif place == '' then
    redis.call('HSET', aside, reservation, reserved)
    return 1
  end
  if has_all_pages(site_of(place)) then return 2 end
  if fingerprint ~= '' and not see(fingerprint) then return 0 end
  redis.call('HSET', requests, place, data)
  count_unfinished(1)
  enqueue(place)
  return 1
end

-- Some of the first `looked_at` sites in order: `most` of those that are not to be skipped.
local function next_sites(most, skip, looked_at)
  local found = {}
  for _, site in ipairs(redis.call('ZRANGE', sites, 0, looked_at - 1)) do
    if not skip[site] and #found < most then table.insert(found, site) end
  end
  return found
end

-- Gives back the requests that the node does not know of, after a lost reply.
-- Arguments: -1, or after a lost reply the number of requests that the node has; how many of them it has not
-- started; their places, these first. Returns true if requests that it has not started are no longer its own:
-- its lease had ended, which it does not know.
local function compare()
  local count = next_number()
  if count < 0 then return false end
  local ready, had = next_number(), {}
  for i = 1, count do
    had[next_argument()] = i
  end
  give_in_flight_back(node, put_back, had) -- promise: lost reply
  for _, i in pairs(had) do
    if i <= ready then return true end
  end
  return false
end

local lost = 0
local has_more_sites = false

local function take_place(from, place, failures, taken_now)
  redis.call('ZREM', from, place)
  local data = redis.call('HGET', requests, place)
  if not data then -- it was evicted, or deleted
    lost = lost + 1
    return
  end
  take_by(node, place, failures)
  count_in_flight(site_of(place), 1)
  table.insert(taken_now, place)
  table.insert(taken_now, data)
  table.insert(taken_now, failures)
end

-- Takes requests: from a site with a poison request only that one, from the other sites equal numbers; from a
-- short queue only this node's share, as other nodes need requests, too. Sites that prove to be over the
-- budgets leave the order: if all of them do, the node asks again.
local function take(most, most_per_site, may_be_poison, may_be_alone, skip, skipped)
  local looked_at = most + skipped
  local taken_now = {}
  local node_count = redis.call('ZCARD', nodes)
  local once_failed = may_be_poison and first_poison(1, skip)
  if once_failed then
    take_place(suspects, once_failed, 1, taken_now)
    skip[site_of(once_failed)] = true
    most = most - 1
  end
  local in_order = next_sites(most, skip, looked_at)
  local per_site = math.min(most_per_site, math.ceil(most / #in_order))
  for _, site in ipairs(in_order) do
    local share = math.ceil(redis.call('ZLEXCOUNT', queue, bounds_of(site)) / node_count)
    for _, place in ipairs(first_of(queue, site, math.min(per_site, share, most, budget_left(site)))) do
      take_place(queue, place, 0, taken_now)
      most = most - 1
    end
    put_last(site, true)
  end
  has_more_sites = #taken_now == 0 and #in_order > 0
  local alone = may_be_alone and #taken_now == 0 and #in_order == 0 and first_poison(TRIES_BEFORE_ALONE, skip)
  if alone then take_place(suspects, alone, TRIES_BEFORE_ALONE, taken_now) end
  return taken_now
end

local queued = {}
for i = 1, next_number() do
  queued[i] = add(next_argument(), next_argument(), next_argument(), next_argument())
end

finish_all()

for _ = 1, next_number() do
  local place = next_argument()
  local is_refused = next_argument() == REFUSED
  local first, last = bounds_of_in_flight(node, place)
  local member = redis.call('ZRANGE', taken, first, last, 'BYLEX', 'LIMIT', 0, 1)[1]
  if member then
    local _, _, failures = read_in_flight(member)
    untake(node, place)
    if is_refused then
      move_data(place, aside)
    else
      note_poison(place, failures, true)
    end
  end
end

local has_lost_some = compare()
local lease_expired = works and renew_lease() or 0
if has_lost_some then lease_expired = 1 end
write_stats()
local taken_now = {}
local most = next_number()
local most_per_site = next_number()
local may_be_poison = next_number() == 1
local may_be_alone = next_number() == 1
local skip = {}
local skipped = #ARGV - last_argument_read
for i = last_argument_read + 1, #ARGV do
  skip[ARGV[i]] = true
end
local asks = most > 0
if asks then
  redis.call('ZREM', hungry, node)
  stop_dead_nodes()
  most = math.min(most, pages_left())
  if most > 0 then taken_now = take(most, most_per_site, may_be_poison, may_be_alone, skip, skipped) end
  if #taken_now > 0 then
    renew_lease()
    redis.call('HDEL', run, 'idle_since')
  end
end
-- Without an offer: this node may have been notified of the last one, so the next waiting nodes are, too.
if not offer_requests() and asks and has_requests() then wake_waiting_nodes() end
if asks and #taken_now == 0 then wait_for_requests() end
if has_more_sites then notify(node) end
return { queued, taken_now, lease_expired, dead_letters, lost }
