-- Sent in front of every script of the frontier: names for keys and arguments, and shared functions.
-- KEYS: a crawl's, see `CrawlKeys`: run, nodes, working, seen, requests, queue, sites, taken.
-- ARGV: the crawl's channel; the calling node; the run that it has joined; the length of its lease (ms);
-- then the script's own.
-- A place is a site, a zero byte, and 18 bytes that order the site's requests; no site has a zero byte.
local run, nodes, working, seen, requests = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local queue, sites, taken = KEYS[6], KEYS[7], KEYS[8]
local channel, node, joined_run, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local last_argument_read = 4

local END_KEPT_MS = 24 * 3600 * 1000
local LONGEST_STEP = 0.32 -- of a lease

local run_id, ended, previous_run, wall, clock =
  unpack(redis.call("HMGET", run, "id", "ended", "previous", "wall", "clock"))

-- Leases are timed by the crawl's own clock. It follows the server's wall clock, by a part of a lease at
-- most in one call, and does not go back: so a wall clock that is set ends no lease of a living node.
local time = redis.call("TIME")
local wall_now = time[1] * 1000 + math.floor(time[2] / 1000)
local now = wall_now
if clock then
  now = clock + math.max(0, math.min(wall_now - wall, LONGEST_STEP * lease_ms))
end

local function write_clock()
  redis.call("HSET", run, "wall", wall_now, "clock", now)
end

local function has_arguments()
  return last_argument_read < #ARGV
end

local function next_argument()
  last_argument_read = last_argument_read + 1
  return ARGV[last_argument_read]
end

local function next_number()
  return tonumber(next_argument())
end

local function site_of(place)
  return string.sub(place, 1, -20)
end

-- The bounds of all members of a sorted set that begin with this name and a zero byte.
local function bounds_of(name)
  return "[" .. name .. "\0", "(" .. name .. "\1"
end

-- A turn after all other sites'.
local function last_turn()
  local last = redis.call("ZRANGE", sites, -1, -1, "WITHSCORES")[2]
  return (last or 0) + 1
end

local has_new_sites = false

local function enqueue(place)
  redis.call("ZADD", queue, 0, place)
  local site = site_of(place)
  if not redis.call("ZSCORE", sites, site) then
    redis.call("ZADD", sites, last_turn(), site)
    has_new_sites = true
  end
end

-- Once for a site's first request: idle nodes that are told of it then ask for requests.
local function notify_idle_nodes()
  if has_new_sites and redis.call("EXISTS", sites) == 1 then
    redis.call("PUBLISH", channel, "requests")
  end
end

-- The node is there until its lease ends, whether it works or not.
local function renew_presence()
  redis.call("ZADD", nodes, now + lease_ms, node)
end

local function renew_lease()
  redis.call("ZADD", working, now + lease_ms, node)
end

-- Does nothing if the node's lease has expired meanwhile: another node may have the request now.
local function finish(place)
  if redis.call("ZREM", taken, node .. "\0" .. place) == 1 then
    redis.call("HDEL", requests, place)
  end
end

-- Ends a node's lease, and puts what it has taken and not finished back to its old place. Together,
-- so that a node that has taken requests always has a lease.
local function stop_working(name)
  local first, last = bounds_of(name)
  for _, member in ipairs(redis.call("ZRANGE", taken, first, last, "BYLEX")) do
    enqueue(string.sub(member, #name + 2))
    redis.call("ZREM", taken, member)
  end
  redis.call("ZREM", working, name)
end

local function stop_dead_nodes()
  for _, name in ipairs(redis.call("ZRANGE", working, "-inf", now, "BYSCORE")) do
    if name ~= node then
      stop_working(name)
    end
  end
  redis.call("ZREMRANGEBYSCORE", nodes, "-inf", now)
end

local function end_run()
  redis.call("UNLINK", nodes, working, seen, requests, queue, sites, taken)
  redis.call("HSET", run, "ended", wall_now)
  redis.call("PEXPIRE", run, END_KEPT_MS)
  redis.call("PUBLISH", channel, "done")
end
