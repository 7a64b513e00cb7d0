-- Sent in front of every script of the frontier: names for keys and arguments, and shared functions.
-- KEYS: a crawl's, see `CrawlClient`.
-- ARGV: what the names of the nodes' channels begin with; the calling node; the run that it has joined; the
-- length of its lease (ms); how many pages the crawl may have, and how many of one site, 0 for no limit;
-- after how many seconds a fingerprint counts as new again, 0 for never; then the script's own.
-- A place is a site, a zero byte, and 18 bytes that order the site's requests; no site has a zero byte.

@include(shared/wall)

local last_argument_read = 0
local function next_argument()
  last_argument_read = last_argument_read + 1
  return ARGV[last_argument_read]
end

local function next_number()
  return tonumber(next_argument())
end

local run, nodes, working, seen, requests, queue, sites, taken, suspects, aside, failed, hungry, claims,
  budgets, stats = unpack(KEYS)
local kept_after_end = { run, seen, aside, failed, budgets, stats }
local channel_head, node, joined_run = next_argument(), next_argument(), next_argument()
local lease_ms, most_pages, most_of_site, recrawl_after_s =
  next_number(), next_number(), next_number(), next_number()

local END_KEPT_MS = 30 * DAY
local LONGEST_STEP = 0.32 -- of a lease, as STEP in model/lease.py
local TRIES_BEFORE_ALONE, MOST_TRIES = 2, 3 -- of a request
local WOKEN_AT_ONCE = 2 -- nodes
local PAGE, FAILED = '1', '2' -- what has become of a request; '0': neither
local SUSPECTS_LOOKED_AT = 100 -- for one whose site is not skipped

local run_id, ended, previous_run, wall, clock =
  unpack(redis.call('HMGET', run, 'id', 'ended', 'previous', 'wall', 'clock'))

-- Leases are timed by the crawl's own clock. It follows the server's wall clock, by a part of a lease at
-- most in one call, and does not go back: so a wall clock that is set ends no lease of a living node.
local now = clock and clock + math.max(0, math.min(WALL - wall, LONGEST_STEP * lease_ms)) or WALL

local function write_clock()
  redis.call('HSET', run, 'wall', WALL, 'clock', now)
end

local function site_of(place)
  return string.sub(place, 1, -20)
end

-- The bounds of all members of a sorted set that begin with this name and a zero byte; and the first of
-- these.
local function bounds_of(name)
  return '[' .. name .. '\0', '(' .. name .. '\1'
end

local function first_of(key, name, most)
  local first, last = bounds_of(name)
  return redis.call('ZRANGE', key, first, last, 'BYLEX', 'LIMIT', 0, most)
end

-- A turn after all other sites'.
local function last_turn()
  return (redis.call('ZRANGE', sites, -1, -1, 'WITHSCORES')[2] or 0) + 1
end

local has_new_requests = false -- for nodes that wait

-- How many more requests of a site may be taken: each of these may become a page. `budgets` has its pages,
-- and behind a zero byte how many of its requests are taken.
local function budget_left(site)
  if most_of_site == 0 then return math.huge end
  local pages, taken_now = unpack(redis.call('HMGET', budgets, site, site .. '\0'))
  return most_of_site - (pages or 0) - (taken_now or 0)
end

-- Gives a site the last turn, if it has none or has just had one; it loses its turn if no requests are
-- queued, or it may have no more pages.
local function give_turn(site, has_had_one)
  if budget_left(site) <= 0 or #first_of(queue, site, 1) == 0 then
    redis.call('ZREM', sites, site)
  elseif has_had_one or not redis.call('ZSCORE', sites, site) then
    redis.call('ZADD', sites, last_turn(), site)
    has_new_requests = has_new_requests or not has_had_one
  end
end

local function enqueue(place)
  redis.call('ZADD', queue, 0, place)
  local site = site_of(place)
  if not redis.call('ZSCORE', sites, site) then give_turn(site) end
end

-- Puts back a request that was taken; so many nodes have failed with it.
local function put_back(place, failures)
  if failures == 0 then
    enqueue(place)
  else
    redis.call('ZADD', suspects, failures, place)
    has_new_requests = true
  end
end

-- Data of the requests that this call sets aside.
local set_aside = {}

local function move_data(place, to)
  local data = redis.call('HGET', requests, place)
  redis.call('HDEL', requests, place)
  redis.call('HSET', to, place, data)
  return data
end

-- The node that had this request died, or could not read it, and so may others. So it becomes a suspect: a
-- node takes one of these at a time; after two failures only if it has nothing else. After a third one it is
-- set aside, if `is_proven`: that node had no other request.
local function suspect(place, failures, is_proven)
  if failures + 1 >= MOST_TRIES and is_proven then
    table.insert(set_aside, move_data(place, aside))
  else
    put_back(place, math.min(failures + 1, TRIES_BEFORE_ALONE))
  end
end

-- The first of the requests that so many nodes have failed with, of a site that may have more pages and is
-- not skipped.
local function first_suspect(failures, skip)
  local most = most_of_site > 0 and -1 or SUSPECTS_LOOKED_AT
  local found = redis.call('ZRANGE', suspects, failures, failures, 'BYSCORE', 'LIMIT', 0, most)
  for _, place in ipairs(found) do
    local site = site_of(place)
    if not skip[site] and budget_left(site) > 0 then return place end
  end
end

local function has_requests()
  return redis.call('EXISTS', sites) == 1 or first_suspect(1, {}) or first_suspect(TRIES_BEFORE_ALONE, {})
end

-- Tells a node that waits to ask again.
local function tell(name)
  redis.call('ZREM', hungry, name)
  redis.call('PUBLISH', channel_head .. name, '')
end

local function last_offer()
  return redis.call('HGET', run, 'offers') or 0
end

-- The node waits. It has seen all offers until now.
local function wait_hungry()
  redis.call('ZADD', hungry, last_offer(), node)
end

-- Tells a few nodes that wait and have not seen the last offer. When these ask, the next ones are told: all
-- hear of it soon if much is left, and few if there is little.
local function wake_hungry_nodes()
  local left, seen_all = WOKEN_AT_ONCE, '(' .. last_offer()
  while left > 0 do
    local name = redis.call('ZRANGE', hungry, '-inf', seen_all, 'BYSCORE', 'LIMIT', 0, 1)[1]
    if not name then return end
    if tonumber(redis.call('ZSCORE', nodes, name) or 0) > now then left = left - 1 end
    tell(name)
  end
end

local function make_offer()
  redis.call('HINCRBY', run, 'offers', 1)
  wake_hungry_nodes()
end

local function tell_hungry_nodes()
  for _, name in ipairs(redis.call('ZRANGE', hungry, 0, -1)) do
    tell(name)
  end
end

-- `passes_on`: the node may be one that was told.
local function offer_requests(passes_on)
  if has_new_requests and has_requests() then
    make_offer()
  elseif passes_on and has_requests() then
    wake_hungry_nodes()
  end
end

-- The node is there until its lease ends, whether it works or not.
local function renew_presence()
  redis.call('ZADD', nodes, now + lease_ms, node)
end

-- Returns 1 if the node had no lease, else 0.
local function renew_lease()
  return redis.call('ZADD', working, now + lease_ms, node)
end

-- How many more requests may be taken: each that is taken may become a page.
local function pages_left()
  if most_pages == 0 then return math.huge end
  return most_pages - (redis.call('HGET', run, 'pages') or 0) - redis.call('ZCARD', taken)
end

-- Takes a request from a node. Returns how many nodes have failed with it; nil: the node did not have it. The
-- number is a part of the member, because members are found by name only if all scores are equal.
local function untake(name, place)
  local failures = 0
  while redis.call('ZREM', taken, name .. '\0' .. place .. failures) == 0 do
    failures = failures + 1
    if failures > TRIES_BEFORE_ALONE then return nil end
  end
  if most_of_site > 0 then
    redis.call('HINCRBY', budgets, site_of(place) .. '\0', -1)
    give_turn(site_of(place)) -- another of its requests may become the page
  end
  return failures
end

-- A node whose lease is over has finished a request. It counts, unless another has finished it before.
local function untake_from_others(place)
  if redis.call('HEXISTS', requests, place) == 0 then return false end
  redis.call('ZREM', queue, place)
  redis.call('ZREM', suspects, place)
  for _, name in ipairs(redis.call('ZRANGE', working, 0, -1)) do
    untake(name, place)
  end
  return true
end

local function finish(place, outcome)
  if not (untake(node, place) or untake_from_others(place)) then return end
  local site = site_of(place)
  if outcome == FAILED then
    move_data(place, failed)
  else
    redis.call('HDEL', requests, place)
  end
  if outcome == PAGE then
    redis.call('HINCRBY', run, 'pages', 1)
    if most_of_site > 0 then redis.call('HINCRBY', budgets, site, 1) end
  elseif most_pages > 0 then
    has_new_requests = true -- another request may become the page
  end
  if most_of_site > 0 then give_turn(site) end
end

-- Arguments: how many requests are finished, and of each its place and what has become of it.
local function finish_all()
  for _ = 1, next_number() do
    local place = next_argument()
    finish(place, next_argument())
  end
end

-- Ends a node's lease, and gives back what it has taken and not finished: `give_back` is called with each
-- place, how many nodes have failed with it, and whether it is the only one. Together, so that a node that
-- has taken requests always has a lease. True if it had one.
local function stop_working(name, give_back)
  local members = first_of(taken, name, -1)
  for _, member in ipairs(members) do
    local place = string.sub(member, #name + 2, -2)
    give_back(place, untake(name, place), #members == 1)
  end
  return redis.call('ZREM', working, name) == 1
end

local function stop_dead_nodes()
  for _, name in ipairs(redis.call('ZRANGE', working, '-inf', now, 'BYSCORE')) do
    if name ~= node then stop_working(name, suspect) end
  end
  redis.call('ZREMRANGEBYSCORE', nodes, '-inf', now)
end

-- Arguments: how many numbers the node has counted, and of each its name and the number.
local function write_stats()
  for _ = 1, next_number() do
    local name = next_argument()
    redis.call('HSET', stats, node .. '\0' .. name, next_argument())
  end
end

-- Whether it is known of each fingerprint when it was seen, so that it may count as new again.
local function is_timed()
  return redis.call('HGET', run, 'timed') == '1'
end

-- What was set aside or has failed is kept, and what was seen with it: it may be put back. What is timed is
-- kept for the next run.
local function end_run()
  tell_hungry_nodes()
  redis.call('UNLINK', nodes, working, requests, queue, sites, taken, suspects, claims)
  if redis.call('EXISTS', aside, failed) == 0 then
    redis.call('UNLINK', budgets)
    if not is_timed() then redis.call('UNLINK', seen) end
  end
  redis.call('HSET', run, 'ended', WALL)
  redis.call('HDEL', run, 'ending')
  for _, key in ipairs(kept_after_end) do
    redis.call('PEXPIRE', key, math.max(END_KEPT_MS, 1000 * recrawl_after_s))
  end
end
