-- Queue new requests, forget finished ones, take others: in this order. If a part fails, the later
-- ones are not done.
-- KEYS: see common.lua.
-- ARGV: length of the lease (ms); 1 if the node works, else its lease begins with the first request
-- that it takes; most fingerprints that the crawl may have, 0 for no limit; number of new requests,
-- and of each its id, score (the lowest leaves first), site, data and fingerprint (empty: queued in
-- any case); number of finished requests, and their ids; most requests to take; most of these of one
-- site; the sites to skip.
-- Reply: of each new request 1 if it is queued, 0 if its fingerprint is known or one too many; id,
-- site and data of each request taken; 1 if the node works and had no lease any more, so that what
-- it had taken went back to the queues.
local lease_ms, works, most_seen = next_number(), next_number() == 1, next_number()

local function renew_lease()
  redis.call("ZADD", working, now_ms() + lease_ms, node)
end

local function is_new(fingerprint)
  if fingerprint == "" then
    return true
  end
  if most_seen > 0 and redis.call("SCARD", seen) >= most_seen then
    return false
  end
  return redis.call("SADD", seen, fingerprint) == 1
end

-- In one step with the fingerprint: a crash between the two would lose the request.
local function add(id, score, site, data, fingerprint)
  if redis.call("HEXISTS", requests, id) == 1 then
    return 1 -- sent again, because our reply was lost
  end
  if not is_new(fingerprint) then
    return 0
  end
  redis.call("HSET", requests, id, data)
  enqueue(site, score, id)
  return 1
end

-- The sites whose turn is next, at most `most`, without those to skip.
local function next_sites(most, skipped)
  local skip, found = {}, {}
  for _, site in ipairs(skipped) do
    skip[site] = true
  end
  for _, site in ipairs(redis.call("ZRANGE", sites, 0, most + #skipped - 1)) do
    if not skip[site] and #found < most then
      table.insert(found, site)
    end
  end
  return found
end

local function take_from(site, most, taken)
  local popped = redis.call("ZPOPMIN", queue_of(site), most)
  for i = 1, #popped, 2 do
    local id, score = popped[i], popped[i + 1]
    redis.call("HSET", taken_by(node), id, score .. " " .. site)
    table.insert(taken, id)
    table.insert(taken, site)
    table.insert(taken, redis.call("HGET", requests, id))
  end
  if redis.call("EXISTS", queue_of(site)) == 1 then
    redis.call("ZADD", sites, last_turn(), site)
  else
    redis.call("ZREM", sites, site)
  end
  return #popped / 2
end

-- The same number of each site, and of a short queue only this node's share: other nodes need
-- requests, too.
local function take(most, most_per_site, skipped)
  local taken, in_turn, node_count = {}, next_sites(most, skipped), redis.call("SCARD", nodes)
  local per_site = math.min(most_per_site, math.ceil(most / #in_turn))
  for _, site in ipairs(in_turn) do
    local share = math.ceil(redis.call("ZCARD", queue_of(site)) / node_count)
    most = most - take_from(site, math.min(per_site, share, most), taken)
    if most == 0 then
      break
    end
  end
  return taken
end

local queued = {}
for i = 1, next_number() do
  queued[i] =
    add(next_argument(), next_argument(), next_argument(), next_argument(), next_argument())
end

for _ = 1, next_number() do
  finish(next_argument())
end

local lease_expired = 0
if works then
  if not redis.call("ZSCORE", working, node) then
    lease_expired = 1
  end
  renew_lease()
end

local taken, most, most_per_site, skipped = {}, next_number(), next_number(), {}
while has_arguments() do
  table.insert(skipped, next_argument())
end
if most > 0 then
  stop_dead_nodes()
  taken = take(most, most_per_site, skipped)
  if #taken > 0 then
    renew_lease()
  end
end
notify_idle_nodes()
return {queued, taken, lease_expired}
