-- Put before every script: a crawl's keys, who is asking, and what the scripts have in common.
-- KEYS: run, ended, nodes, working, seen, requests, sites, and what the keys of all queues and of
-- all hands begin with (see shared_crawl.py).
-- ARGV: channel of the news; node; the run that the node has joined.
-- Reply to a node whose run is over: an error that says so. It leaves no traces in the next run.
local run, ended, nodes, working = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local seen, requests, sites, queues, hands = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local news, node, its_run = ARGV[1], ARGV[2], ARGV[3]

local MARK_OF_THE_END_S = 24 * 3600

if redis.call("GET", run) ~= its_run then
  if redis.call("EXISTS", ended) == 1 then
    return redis.error_reply("ENDED this run of the crawl is over")
  end
  return redis.error_reply("LOST the server does not know this run of the crawl")
end

local function now_ms()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function hand_of(name)
  return hands .. name
end

local function queue_of(site)
  return queues .. site
end

-- A place in turn behind all other sites.
local function last_turn()
  local last = redis.call("ZRANGE", sites, -1, -1, "WITHSCORES")[2]
  return (last or 0) + 1
end

local has_news = false

-- Others need only be told of a site's first request: then they look for themselves.
local function put_in_line(site, score, id)
  redis.call("ZADD", queue_of(site), score, id)
  if not redis.call("ZSCORE", sites, site) then
    redis.call("ZADD", sites, last_turn(), site)
    has_news = true
  end
end

local function tell_the_resting()
  if has_news and redis.call("EXISTS", sites) == 1 then
    redis.call("PUBLISH", news, "requests")
  end
end

-- What is done is forgotten, unless the node was taken for dead and others have it now.
local function finish(id)
  if redis.call("HDEL", hand_of(node), id) == 1 then
    redis.call("HDEL", requests, id)
  end
end

local function finish_all_from(first_done)
  for i = first_done, #ARGV do
    finish(ARGV[i])
  end
end

-- Requests and mark go together: who has requests in hand is always marked as working.
local function stop(name)
  local hand = redis.call("HGETALL", hand_of(name))
  for i = 1, #hand, 2 do
    local score, site = string.match(hand[i + 1], "^(%S+) (.*)$")
    put_in_line(site, score, hand[i]) -- where it was when it was taken
  end
  redis.call("DEL", hand_of(name))
  redis.call("ZREM", working, name)
end

local function stop_the_dead()
  for _, name in ipairs(redis.call("ZRANGEBYSCORE", working, "-inf", now_ms())) do
    if name ~= node then
      stop(name)
    end
  end
end

local function end_run()
  for _, name in ipairs(redis.call("SMEMBERS", nodes)) do
    redis.call("DEL", hand_of(name))
  end
  for _, site in ipairs(redis.call("ZRANGE", sites, 0, -1)) do
    redis.call("DEL", queue_of(site))
  end
  redis.call("DEL", run, nodes, working, seen, requests, sites)
  redis.call("SET", ended, "", "EX", MARK_OF_THE_END_S)
  redis.call("PUBLISH", news, "done")
end
