-- Queues new requests, forgets finished ones, gives unreadable ones back, takes others: in this order. If a
-- part fails, the later ones are not done.
-- KEYS: see shared/common.lua.
-- ARGV: 1 if the node works, else its lease begins with the first request that it takes; number of new
-- requests, and of each its place, data, fingerprint (8 bytes, or none: queued in any case) and claim (or
-- none; without a place only the claim is given up); the finished requests, see `finish_all`; number of
-- requests that the node cannot read, and their places; what the node has counted, see `write_stats`; most
-- requests to take; most of these of one site; 1 if one may be a suspect; 1 if it may be one to be done
-- alone; the sites to skip.
-- Reply: of each new request 1 if it is queued, 0 if its fingerprint is known, 2 if its site may have no more
-- pages; place, data and number of failed tries of each request taken; 1 if the node works and had no lease
-- any more, so that what it had taken went back to the queues; the data of each request that is set aside
-- now.

@include(shared/common)
@include(shared/joined)
@include(shared/seen)

local works = next_number() == 1

-- In one step with the fingerprint: a crash between the two would lose the request.
local function add(place, data, fingerprint, claim)
  if redis.call('HEXISTS', requests, place) == 1 then
    return 1 -- sent again, because our reply was lost
  end
  if claim ~= '' and redis.call('HDEL', claims, claim) == 0 or place == '' then
    return 1 -- queued already, perhaps by another node
  end
  if is_used_up(site_of(place)) then
    return 2
  end
  if fingerprint ~= '' and not see(fingerprint) then
    return 0
  end
  redis.call('HSET', requests, place, data)
  enqueue(place)
  return 1
end

local may_suspect, may_be_alone = false, false

-- The sites whose turn is next, at most `most`, without those to skip; and in front of them one that has
-- nothing but suspects, if one of these may be taken.
local function next_sites(most, skipped)
  local skip, found = {}, {}
  for _, site in ipairs(skipped) do
    skip[site] = true
  end
  local function find(lowest, highest, count)
    local enough = #found + count
    local candidates = redis.call('ZRANGE', sites, lowest, highest, 'BYSCORE', 'LIMIT', 0, count + #skipped)
    for _, site in ipairs(candidates) do
      if not skip[site] and #found < enough then
        table.insert(found, site)
      end
    end
  end
  if may_suspect then
    find('-inf', '(0', 1)
  end
  find(0, 'inf', most)
  return found
end

local function take_place(from, place, taken_now)
  redis.call('ZREM', from, place)
  redis.call('ZADD', taken, 0, node .. '\0' .. place)
  if most_of_site > 0 then
    redis.call('HINCRBY', budgets, site_of(place) .. '\0', 1)
  end
  table.insert(taken_now, place)
  table.insert(taken_now, redis.call('HGET', requests, place))
  table.insert(taken_now, tonumber(redis.call('HGET', tries, place) or 0))
end

local function take_from(site, most, taken_now)
  local count = 0
  for _, place in ipairs(first_places(suspects, site, may_suspect and 1 or 0)) do
    may_suspect, count = false, 1
    take_place(suspects, place, taken_now)
  end
  for _, place in ipairs(first_places(queue, site, most - count)) do
    count = count + 1
    take_place(queue, place, taken_now)
  end
  give_turn(site, true)
  return count
end

-- The same number of each site, and of a short queue only this node's share: other nodes need
-- requests, too.
local function take(most, most_per_site, skipped)
  local taken_now, in_turn, node_count = {}, next_sites(most, skipped), redis.call('ZCARD', nodes)
  local per_site = math.min(most_per_site, math.ceil(most / #in_turn))
  for _, site in ipairs(in_turn) do
    local here = redis.call('ZLEXCOUNT', queue, bounds_of(site))
      + redis.call('ZLEXCOUNT', suspects, bounds_of(site))
    local share = math.ceil(here / node_count)
    most = most - take_from(site, math.min(per_site, share, most, budget_left(site)), taken_now)
    if most == 0 then
      break
    end
  end
  local alone = may_be_alone and #taken_now == 0 and first_alone()
  if alone then
    take_place(lone, alone, taken_now)
  end
  return taken_now
end

local queued = {}
for i = 1, next_number() do
  queued[i] = add(next_argument(), next_argument(), next_argument(), next_argument())
end

finish_all()

for _ = 1, next_number() do
  local place = next_argument()
  if untake(node, place) then
    suspect(place, true)
  end
end

local lease_expired = 0
if works then
  if not redis.call('ZSCORE', working, node) then
    lease_expired = 1
  end
  renew_lease()
end

write_stats()
local taken_now, most, most_per_site, skipped = {}, next_number(), next_number(), {}
may_suspect, may_be_alone = next_number() == 1, next_number() == 1
while has_arguments() do
  table.insert(skipped, next_argument())
end
local asks = most > 0
if asks then
  stop_dead_nodes()
  most = math.min(most, pages_left())
end
if most > 0 then
  taken_now = take(most, most_per_site, skipped)
end
if #taken_now > 0 then
  renew_lease()
end
if asks then
  redis.call('ZREM', hungry, node)
end
offer_requests(asks)
if asks and #taken_now == 0 then
  wait_hungry()
end
return { queued, taken_now, lease_expired, set_aside }
