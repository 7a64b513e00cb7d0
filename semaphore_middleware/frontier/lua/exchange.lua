-- What a node says and hears while it works. In this order, and nothing of it if something before
-- it fails: queue what it has produced, forget what it has finished, take the next requests.
-- ARGV: lease of the mark that it works (ms); 1 if it does already, else it gets the mark with its
-- first request; most fingerprints that the crawl may have, 0 for no limit; number of entries, and of
-- each its id, score (the lowest leaves first), site, request and fingerprint (empty for a request
-- that may come again); number of ids that the node has finished, and these; most requests to take;
-- most of these of one site; the sites to pass over.
-- Reply: of each entry 1 if it is queued, 0 if not: it is known, or the crawl has all the pages it
-- may have; id, site and request of each that was taken; 1 if the node was taken for dead before, so
-- that all it had in hand is others' now.
local position = 3

local function argument()
  position = position + 1
  return ARGV[position]
end

local function number()
  return tonumber(argument())
end

local lease_ms, works, most_seen = number(), number() == 1, number()

local function mark_as_working()
  redis.call("ZADD", working, now_ms() + lease_ms, node)
end

local function wanted(fingerprint)
  if fingerprint == "" then
    return true
  end
  if most_seen > 0 and redis.call("SCARD", seen) >= most_seen then
    return false
  end
  return redis.call("SADD", seen, fingerprint) == 1
end

-- In one step with its fingerprint: a crash between the two would lose the request.
local function push(id, score, site, request, fingerprint)
  if redis.call("HEXISTS", requests, id) == 1 then
    return 1 -- sent again, because our reply was lost
  end
  if not wanted(fingerprint) then
    return 0
  end
  redis.call("HSET", requests, id, request)
  put_in_line(site, score, id)
  return 1
end

-- The sites whose turn it is, `most` of them at most, but for those that are passed over.
local function sites_in_turn(most, passed_over)
  local skip, found = {}, {}
  for _, site in ipairs(passed_over) do
    skip[site] = true
  end
  for _, site in ipairs(redis.call("ZRANGE", sites, 0, most + #passed_over - 1)) do
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
    redis.call("HSET", hand_of(node), id, score .. " " .. site)
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

-- Of each site as much as of any other, and of a short queue a share only: the other nodes want
-- something to do as well.
local function take(most, most_of_a_site, passed_over)
  local taken, in_turn, takers = {}, sites_in_turn(most, passed_over), redis.call("SCARD", nodes)
  local share = math.min(most_of_a_site, math.ceil(most / #in_turn))
  for _, site in ipairs(in_turn) do
    local fair = math.ceil(redis.call("ZCARD", queue_of(site)) / takers)
    most = most - take_from(site, math.min(share, fair, most), taken)
    if most == 0 then
      break
    end
  end
  return taken
end

local queued = {}
for i = 1, number() do
  queued[i] = push(argument(), argument(), argument(), argument(), argument())
end

for _ = 1, number() do
  finish(argument())
end

local was_taken_for_dead = 0
if works then
  if not redis.call("ZSCORE", working, node) then
    was_taken_for_dead = 1
  end
  mark_as_working()
end

local taken, most, most_of_a_site, passed_over = {}, number(), number(), {}
while position < #ARGV do
  table.insert(passed_over, argument())
end
if most > 0 then
  stop_the_dead()
  taken = take(most, most_of_a_site, passed_over)
  if #taken > 0 then
    mark_as_working()
  end
end
tell_the_resting()
return {queued, taken, was_taken_for_dead}
