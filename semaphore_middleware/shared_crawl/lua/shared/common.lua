-- Included by every script of shared crawls: names for keys and arguments, and functions.
-- KEYS: a crawl's, see `CrawlClient`.
-- ARGV: the version of keys and scripts; the beginning of the nodes' channels; the calling node; its run; the
-- length of its lease (ms); the seconds after which a fingerprint counts as new again, 0 for never; then the
-- script's own arguments.
-- A place is a site, a zero byte, and 18 bytes in the order of the site's requests. No site has a zero byte.

@include(semaphore_middleware.link:shared/wall)

local last_argument_read = 0
local function next_argument()
  last_argument_read = last_argument_read + 1
  return ARGV[last_argument_read]
end

local function next_number()
  return tonumber(next_argument())
end

local run, nodes, working, seen, requests, queue, sites, taken, takers, suspects, aside, failed, hungry,
  claims, budgets, stats = unpack(KEYS)
local kept_after_end = { run, seen, aside, failed, budgets, stats }
local version = next_argument()
local channel_head = next_argument()
local node = next_argument()
local joined_run = next_argument()
local lease_ms = next_number()
local recrawl_after_s = next_number()

local END_KEPT_MS = 30 * DAY
local LONGEST_STEP = 0.32 -- of a lease, as STEP in link/lease.py
local TRIES_BEFORE_ALONE = 2 -- of a request
local MOST_TRIES = 3 -- of a request
local WOKEN_AT_ONCE = 2 -- nodes
local PAGE = '1' -- the outcome of a request; '0': none of these three
local FAILED = '2'
local REFUSED = '3' -- of an unreadable request
local POISON_CHECKED = 100 -- requests, to find one whose site is not skipped
local GIVEN_BACK_AT_ONCE = 250 -- requests of dead nodes, or all of a single node

local run_id, ended, previous_run, wall, clock, version_of_run, most_pages, most_of_site = unpack(redis.call(
  'HMGET', run, 'id', 'ended', 'previous', 'wall', 'clock', 'version', 'most_pages', 'most_of_site'))

-- True if the last run has another version: the contents of its keys may mean something else.
local function is_of_other_version()
  return run_id and version_of_run ~= version
end

-- The run's budgets: the most pages in all and of a site; 0: no limit. The caller's settings do not matter.
most_pages = tonumber(most_pages or 0)
most_of_site = tonumber(most_of_site or 0)

-- Leases are timed by the crawl's own clock. It follows the server's wall clock, in steps of at most a part
-- of a lease, and never goes back: a change of the wall clock ends no lease of a living node.
local now = clock and clock + math.max(0, math.min(WALL - wall, LONGEST_STEP * lease_ms)) or WALL

local function write_clock()
  redis.call('HSET', run, 'wall', WALL, 'clock', now)
end

local function site_of(place)
  return string.sub(place, 1, -20)
end

-- The bounds of a name's members in a sorted set: they begin with the name and a zero byte.
local function bounds_of(name)
  return '[' .. name .. '\0', '(' .. name .. '\1'
end

-- The first of a name's members; without `most`, all of them, as Redis does for a number below 0.
local function first_of(key, name, most)
  local first, last = bounds_of(name)
  return redis.call('ZRANGE', key, first, last, 'BYLEX', 'LIMIT', 0, most and math.max(0, most) or -1)
end

-- A score after those of all other sites.
local function last_score()
  return (redis.call('ZRANGE', sites, -1, -1, 'WITHSCORES')[2] or 0) + 1
end

local has_new_requests = false -- for nodes that wait

-- The number of requests of a site that may still be taken: each may become a page. `budgets` has the site's
-- pages, and under its name with a zero byte how many of its requests are taken.
local function budget_left(site)
  if most_of_site == 0 then return math.huge end
  local pages, taken_now = unpack(redis.call('HMGET', budgets, site, site .. '\0'))
  return most_of_site - (pages or 0) - (taken_now or 0)
end

local function has_all_pages(site)
  return most_of_site > 0 and tonumber(redis.call('HGET', budgets, site) or 0) >= most_of_site
end

-- Call it only while no request is taken, or after the count was evicted.
local function forget_in_flight(site)
  if most_of_site > 0 then redis.call('HDEL', budgets, site .. '\0') end
end

local function count_in_flight(site, change)
  if most_of_site > 0 and redis.call('HINCRBY', budgets, site .. '\0', change) < 0 then
    forget_in_flight(site) -- the count was evicted
  end
end

-- Puts a site last in the order if it is new there, or has just been first. A site without queued requests,
-- or with all its pages, leaves the order.
local function put_last(site, has_had_one)
  if budget_left(site) <= 0 or #first_of(queue, site, 1) == 0 then
    redis.call('ZREM', sites, site)
  elseif has_had_one or not redis.call('ZSCORE', sites, site) then
    redis.call('ZADD', sites, last_score(), site)
    has_new_requests = has_new_requests or not has_had_one
  end
end

local function enqueue(place)
  redis.call('ZADD', queue, 0, place)
  local site = site_of(place)
  if not redis.call('ZSCORE', sites, site) then put_last(site) end
end

-- Puts a taken request back. `failures` is the number of nodes that have failed with it.
local function put_back(place, failures)
  if failures == 0 then
    enqueue(place)
  else
    redis.call('ZADD', suspects, failures, place)
    has_new_requests = true
  end
end

-- Data of the requests that this call has made dead letters.
local dead_letters = {}

-- Counts the crawl's unfinished requests. Those that `requests` lacks at the end are lost.
local function count_unfinished(change)
  redis.call('HINCRBY', run, 'unfinished', change)
end

local function move_data(place, to)
  local data = redis.call('HGET', requests, place)
  if not data then return nil end -- it was evicted, or deleted
  redis.call('HDEL', requests, place)
  redis.call('HSET', to, place, data)
  count_unfinished(-1)
  return data
end

-- A node died with this request, or could not read it: it may be a poison request. A node takes one such
-- request at a time, and after two failures only if it has no other. After a third failure the request
-- becomes a dead letter, if `is_proven`: the node had no other request.
local function note_poison(place, failures, is_proven)
  if failures + 1 >= MOST_TRIES and is_proven then
    table.insert(dead_letters, move_data(place, aside))
  else
    put_back(place, math.min(failures + 1, TRIES_BEFORE_ALONE))
  end
end

-- The first poison request with this number of failures, of a site that is not skipped and may have more
-- pages. Only some are checked, so one whose site has all its pages makes room: it goes to the queue, and
-- waits there for other budgets.
local function first_poison(failures, skip)
  local found =
    redis.call('ZRANGE', suspects, failures, failures, 'BYSCORE', 'LIMIT', 0, POISON_CHECKED)
  for _, place in ipairs(found) do
    local site = site_of(place)
    if not skip[site] and budget_left(site) > 0 then
      return place
    elseif has_all_pages(site) then
      redis.call('ZREM', suspects, place)
      redis.call('ZADD', queue, 0, place)
    end
  end
end

local function has_requests()
  return redis.call('EXISTS', sites) == 1 or first_poison(1, {}) or first_poison(TRIES_BEFORE_ALONE, {})
end

-- Notifies a waiting node, which then asks for requests again.
local function notify(name)
  redis.call('ZREM', hungry, name)
  redis.call('PUBLISH', channel_head .. name, '')
end

local function last_offer()
  return redis.call('HGET', run, 'offers') or 0
end

-- Makes the node wait. It has seen all offers until now.
local function wait_for_requests()
  redis.call('ZADD', hungry, last_offer(), node)
end

-- Notifies a few waiting nodes that have not seen the last offer. When these ask, the next ones are notified:
-- all of them soon if many requests are left, and only a few otherwise.
local function wake_waiting_nodes()
  local left = WOKEN_AT_ONCE
  local seen_all = '(' .. last_offer()
  while left > 0 do
    local name = redis.call('ZRANGE', hungry, '-inf', seen_all, 'BYSCORE', 'LIMIT', 0, 1)[1]
    if not name then return end
    if tonumber(redis.call('ZSCORE', nodes, name) or 0) > now then left = left - 1 end
    notify(name)
  end
end

local function make_offer()
  redis.call('HINCRBY', run, 'offers', 1)
  wake_waiting_nodes()
end

local function notify_waiting_nodes()
  for _, name in ipairs(redis.call('ZRANGE', hungry, 0, -1)) do
    notify(name)
  end
end

-- Returns true if it has made an offer.
local function offer_requests()
  if not has_new_requests or not has_requests() then return false end
  make_offer()
  return true
end

-- Keeps the node in `nodes` until its lease ends, whether it works or not.
local function renew_presence()
  redis.call('ZADD', nodes, now + lease_ms, node)
end

-- Begins or renews the node's lease. Returns 1 if it had none, otherwise 0.
local function renew_lease()
  return redis.call('ZADD', working, now + lease_ms, node)
end

-- The number of requests that may still be taken: each may become a page.
local function pages_left()
  if most_pages == 0 then return math.huge end
  return most_pages - (redis.call('HGET', run, 'pages') or 0) - redis.call('ZCARD', taken)
end

-- A member of `taken` ends with the number of nodes that have failed with the request, one digit, and the
-- time when it was taken (s), 4 bytes. All scores are equal, so that members are found by name. No node's
-- name has a zero byte.
local function take_by(name, place, failures)
  local taken_at = struct.pack('>I4', math.floor(WALL / 1000))
  redis.call('ZADD', taken, 0, name .. '\0' .. place .. failures .. taken_at)
  redis.call('HSET', takers, place, name)
end

-- What a member of `taken` contains: the node's name, the place, and the number of failures.
local function read_in_flight(member)
  local name, place, failures = string.match(member, '^(%Z*)%z(.*)(%d)....$')
  return name, place, tonumber(failures)
end

-- The bounds of the member for a node's request: a digit follows the place.
local function bounds_of_in_flight(name, place)
  local start = name .. '\0' .. place
  return '[' .. start, '(' .. start .. ':'
end

-- Takes a request from a node. Returns true if the node had it.
local function untake(name, place)
  if redis.call('ZREMRANGEBYLEX', taken, bounds_of_in_flight(name, place)) == 0 then return false end
  redis.call('HDEL', takers, place)
  if most_of_site > 0 then
    local site = site_of(place)
    count_in_flight(site, -1)
    put_last(site) -- another of its requests may become the page
  end
  return true
end

-- Takes a request from other nodes, or the queues: the caller has finished it after the end of its lease.
-- Returns false if another node was quicker.
local function untake_from_others(place)
  if redis.call('HEXISTS', requests, place) == 0 then return false end
  if redis.call('ZREM', queue, place) + redis.call('ZREM', suspects, place) == 0 then
    local name = redis.call('HGET', takers, place)
    if name then untake(name, place) end
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
    count_unfinished(-1)
  end
  if outcome == PAGE then
    redis.call('HINCRBY', run, 'pages', 1)
    if most_of_site > 0 then redis.call('HINCRBY', budgets, site, 1) end
  elseif most_pages > 0 then
    has_new_requests = true -- another request may become the page
  end
  if most_of_site > 0 then put_last(site) end
end

-- Arguments: the number of finished requests, and of each its place and outcome.
local function finish_all()
  for _ = 1, next_number() do
    local place = next_argument()
    finish(place, next_argument())
  end
end

-- Gives a node's unfinished requests back: calls `give_back` with each place, the number of nodes that have
-- failed with it, and whether it is the only one. Requests in `kept` stay with the node, and are removed from
-- `kept`. Returns the number of all requests.
local function give_in_flight_back(name, give_back, kept)
  local members = first_of(taken, name)
  for _, member in ipairs(members) do
    local _, place, failures = read_in_flight(member)
    if kept[place] then
      kept[place] = nil
    else
      untake(name, place)
      give_back(place, failures, #members == 1)
    end
  end
  return #members
end

-- Ends a node's lease and gives its unfinished requests back, together: a node with taken requests always has
-- a lease. Returns true if it had one, and the number of requests.
local function stop_working(name, give_back)
  local count = give_in_flight_back(name, give_back, {})
  return redis.call('ZREM', working, name) == 1, count
end

-- Stops a dead node. A node that was stopping has left `nodes` before: it may have been cut off while it
-- waited for a slow request, so none of its requests counts as poison.
local function stop_dead_node(name)
  local _, count = stop_working(name, redis.call('ZSCORE', nodes, name) and note_poison or put_back)
  return count
end

-- Stops dead nodes, until enough requests are given back for one call.
local function stop_dead_nodes()
  local left = GIVEN_BACK_AT_ONCE
  for _, name in ipairs(redis.call('ZRANGE', working, '-inf', now, 'BYSCORE')) do
    if left <= 0 then return end
    if name ~= node then left = left - 1 - stop_dead_node(name) end
  end
  redis.call('ZREMRANGEBYSCORE', nodes, '-inf', now)
end

-- Arguments: how many of the node's stats follow, and each one's name and number.
local function write_stats()
  local count = next_number()
  if count > 0 then redis.call('HSET', stats, node .. '\0', now) end
  for _ = 1, count do
    local name = next_argument()
    redis.call('HSET', stats, node .. '\0' .. name, next_argument())
  end
end

-- True if fingerprints have times, so that they may count as new again.
local function is_timed()
  return redis.call('HGET', run, 'timed') == '1'
end

-- What the ended run lacks: the numbers of dead letters, of requests failed, left in the queues, and lost.
local function missing()
  local left, lost = unpack(redis.call('HMGET', run, 'left', 'lost'))
  return redis.call('HLEN', aside), redis.call('HLEN', failed), tonumber(left or 0), tonumber(lost or 0)
end

-- Ends the run. Failed requests and dead letters may be put back, so they are kept, and `seen` with them. A
-- timed `seen` is kept for the next run.
local function end_run()
  notify_waiting_nodes()
  local left = redis.call('HLEN', requests)
  local unfinished, lost_before = unpack(redis.call('HMGET', run, 'unfinished', 'lost'))
  local lost = (lost_before or 0) + math.max(0, (unfinished or 0) - left)
  redis.call('HSET', run, 'ended', WALL, 'left', left, 'lost', lost)
  redis.call('UNLINK', nodes, working, requests, queue, sites, taken, takers, suspects, claims)
  if redis.call('EXISTS', aside, failed) == 0 then
    redis.call('UNLINK', budgets)
    if not is_timed() then redis.call('UNLINK', seen) end
  end
  redis.call('HDEL', run, 'ending', 'unfinished', 'checked', 'check_from', 'cursor', 'idle_since')
  for _, key in ipairs(kept_after_end) do
    redis.call('PEXPIRE', key, math.max(END_KEPT_MS, 1000 * recrawl_after_s))
  end
end
