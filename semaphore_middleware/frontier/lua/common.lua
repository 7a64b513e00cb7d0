-- Sent in front of every script of the frontier: names for keys and arguments, and shared functions.
-- KEYS: a crawl's, see CrawlClient: run, ended, nodes, working, seen, requests, sites, and the
-- prefixes of all keys queue:<site> and of all keys taken:<node>.
-- ARGV: the crawl's channel; the calling node; the run that it has joined; then the script's own.
-- Reply: if that run is over, the error ENDED or LOST, and nothing is changed.
local run, ended, nodes, working = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local seen, requests, sites = KEYS[5], KEYS[6], KEYS[7]
local queue_prefix, taken_prefix = KEYS[8], KEYS[9]
local channel, node, joined_run = ARGV[1], ARGV[2], ARGV[3]
local last_argument_read = 3

local ENDED_KEPT_S = 24 * 3600

if redis.call("GET", run) ~= joined_run then
  if redis.call("EXISTS", ended) == 1 then
    return redis.error_reply("ENDED this run of the crawl is over")
  end
  return redis.error_reply("LOST the server does not know this run of the crawl")
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

local function now_ms()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function taken_by(name)
  return taken_prefix .. name
end

local function queue_of(site)
  return queue_prefix .. site
end

-- A turn after all other sites'.
local function last_turn()
  local last = redis.call("ZRANGE", sites, -1, -1, "WITHSCORES")[2]
  return (last or 0) + 1
end

local has_new_sites = false

local function enqueue(site, score, id)
  redis.call("ZADD", queue_of(site), score, id)
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

-- Does nothing if the node's lease has expired meanwhile: another node may have the request now.
local function finish(id)
  if redis.call("HDEL", taken_by(node), id) == 1 then
    redis.call("HDEL", requests, id)
  end
end

-- Ends a node's lease, and puts what it has taken and not finished back to its old place. Together,
-- so that a node that has taken requests always has a lease.
local function stop_working(name)
  local taken = redis.call("HGETALL", taken_by(name))
  for i = 1, #taken, 2 do
    local score, site = string.match(taken[i + 1], "^(%S+) (.*)$")
    enqueue(site, score, taken[i])
  end
  redis.call("DEL", taken_by(name))
  redis.call("ZREM", working, name)
end

local function stop_dead_nodes()
  for _, name in ipairs(redis.call("ZRANGEBYSCORE", working, "-inf", now_ms())) do
    if name ~= node then
      stop_working(name)
    end
  end
end

local function end_run()
  for _, name in ipairs(redis.call("SMEMBERS", nodes)) do
    redis.call("DEL", taken_by(name))
  end
  for _, site in ipairs(redis.call("ZRANGE", sites, 0, -1)) do
    redis.call("DEL", queue_of(site))
  end
  redis.call("DEL", run, nodes, working, seen, requests, sites)
  redis.call("SET", ended, "", "EX", ENDED_KEPT_S)
  redis.call("PUBLISH", channel, "done")
end
