-- Sent in front of every script of the frontier but `try_rights`: names for keys and arguments, and shared
-- functions.
-- KEYS: a crawl's, see `CrawlClient`: run, nodes, working, seen, requests, queue, sites, taken, suspects,
-- tries, aside.
-- ARGV: the crawl's channel; the calling node; the run that it has joined; the length of its lease (ms); how
-- many pages the crawl may have, 0 for no limit; then the script's own.
-- A place is a site, a zero byte, and 18 bytes that order the site's requests; no site has a zero byte.

local run, nodes, working, seen, requests = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local queue, sites, taken = KEYS[6], KEYS[7], KEYS[8]
local suspects, tries, aside = KEYS[9], KEYS[10], KEYS[11]
local channel, node, joined_run, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local most_pages = tonumber(ARGV[5])
local last_argument_read = 5

local END_KEPT_MS = 30 * 24 * 3600 * 1000
local LONGEST_STEP = 0.32 -- of a lease, as STEP in model/lease.py
local MOST_TRIES = 3 -- of a request
local FIRST_TURN_OF_SUSPECTS = -2 ^ 53

local run_id, ended, previous_run, wall, clock =
  unpack(redis.call('HMGET', run, 'id', 'ended', 'previous', 'wall', 'clock'))

-- Leases are timed by the crawl's own clock. It follows the server's wall clock, by a part of a lease at
-- most in one call, and does not go back: so a wall clock that is set ends no lease of a living node.
local time = redis.call('TIME')
local wall_now = time[1] * 1000 + math.floor(time[2] / 1000)
local now = wall_now
if clock then
  now = clock + math.max(0, math.min(wall_now - wall, LONGEST_STEP * lease_ms))
end

local function write_clock()
  redis.call('HSET', run, 'wall', wall_now, 'clock', now)
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
  return '[' .. name .. '\0', '(' .. name .. '\1'
end

-- A turn after all other sites'.
local function last_turn()
  local last = redis.call('ZRANGE', sites, -1, -1, 'WITHSCORES')[2]
  return math.max(0, last or 0) + 1
end

-- Sites that have nothing but suspects take turns of their own, below 0: not each call may take one of these.
local function last_turn_of_suspects()
  local last = redis.call('ZRANGE', sites, '(0', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  return (last or FIRST_TURN_OF_SUSPECTS) + 1
end

local has_new_sites = false

local function enqueue(place)
  redis.call('ZADD', queue, 0, place)
  local site = site_of(place)
  local turn = redis.call('ZSCORE', sites, site)
  if not turn or tonumber(turn) < 0 then
    redis.call('ZADD', sites, last_turn(), site)
    has_new_sites = true
  end
end

local function enqueue_suspect(place)
  redis.call('ZADD', suspects, 0, place)
  local site = site_of(place)
  if not redis.call('ZSCORE', sites, site) then
    redis.call('ZADD', sites, last_turn_of_suspects(), site)
    has_new_sites = true
  end
end

-- Puts back what a node has taken and gives back in order: a suspect stays one.
local function put_back(place)
  if redis.call('HEXISTS', tries, place) == 1 then
    enqueue_suspect(place)
  else
    enqueue(place)
  end
end

-- Data of the requests that this call sets aside.
local set_aside = {}

-- A node died that had this request, or could not read it, and another one may fare as badly. So it goes to
-- a queue of its own, of which a node takes one at a time; after some tries nobody gets it any more.
local function suspect(place)
  if redis.call('HINCRBY', tries, place, 1) < MOST_TRIES then
    enqueue_suspect(place)
  else
    redis.call('HDEL', tries, place)
    redis.call('SADD', aside, place)
    table.insert(set_aside, redis.call('HGET', requests, place))
  end
end

-- Once for a site's first request: idle nodes that are told of it then ask for requests.
local function notify_idle_nodes()
  if has_new_sites and redis.call('EXISTS', sites) == 1 then
    redis.call('PUBLISH', channel, 'requests')
  end
end

-- The node is there until its lease ends, whether it works or not.
local function renew_presence()
  redis.call('ZADD', nodes, now + lease_ms, node)
end

local function renew_lease()
  redis.call('ZADD', working, now + lease_ms, node)
end

-- How many requests may be taken: each of those that are may become a page.
local function pages_left()
  if most_pages == 0 then
    return math.huge
  end
  return most_pages - (redis.call('HGET', run, 'pages') or 0) - redis.call('ZCARD', taken)
end

-- Does nothing if the node's lease has expired meanwhile: another node may have the request now.
local function finish(place, is_page)
  if redis.call('ZREM', taken, node .. '\0' .. place) == 1 then
    redis.call('HDEL', requests, place)
    redis.call('HDEL', tries, place)
    if is_page then
      redis.call('HINCRBY', run, 'pages', 1)
    elseif most_pages > 0 then
      has_new_sites = true -- another request may become the page
    end
  end
end

-- Arguments: how many requests are finished, and of each its place and 1 if it was a page, else 0.
local function finish_all()
  for _ = 1, next_number() do
    local place = next_argument()
    finish(place, next_number() == 1)
  end
end

-- Ends a node's lease, and gives back what it has taken and not finished: `give_back` is called with each
-- place. Together, so that a node that has taken requests always has a lease.
local function stop_working(name, give_back)
  local first, last = bounds_of(name)
  for _, member in ipairs(redis.call('ZRANGE', taken, first, last, 'BYLEX')) do
    give_back(string.sub(member, #name + 2))
    redis.call('ZREM', taken, member)
  end
  redis.call('ZREM', working, name)
end

local function stop_dead_nodes()
  for _, name in ipairs(redis.call('ZRANGE', working, '-inf', now, 'BYSCORE')) do
    if name ~= node then
      stop_working(name, suspect)
    end
  end
  redis.call('ZREMRANGEBYSCORE', nodes, '-inf', now)
end

-- What was set aside is kept, and what was seen with it: it may be put back.
local function end_run()
  redis.call('UNLINK', nodes, working, queue, sites, taken, suspects, tries)
  if redis.call('EXISTS', aside) == 0 then
    redis.call('UNLINK', seen, requests)
  end
  redis.call('HSET', run, 'ended', wall_now)
  for _, key in ipairs({ run, seen, requests, aside }) do
    redis.call('PEXPIRE', key, END_KEPT_MS)
  end
  redis.call('PUBLISH', channel, 'done')
end
