-- Put before every script: a crawl's keys, who is asking, and what the scripts have in common.
-- KEYS: run, ended, nodes, working, seen, requests, queue, hands (see shared_crawl.py).
-- ARGV: channel of the news; node; the run that the node has joined.
-- Reply to a node whose run is over: an error that says so. It leaves no traces in the next run.
local run, ended, nodes, working = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local seen, requests, queue, hands = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
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

local function work_for(lease_ms)
  redis.call("ZADD", working, now_ms() + lease_ms, node)
end

-- Resting nodes need only be told of the first request: then they look for themselves.
local function put_in_line(score, id)
  redis.call("ZADD", queue, score, id)
  if redis.call("ZCARD", queue) == 1 then
    redis.call("PUBLISH", news, "requests")
  end
end

-- What the node has finished is forgotten, unless it was taken for dead and others have it now.
local function finish(first_done)
  for i = first_done, #ARGV do
    if redis.call("SREM", hand_of(node), ARGV[i]) == 1 then
      redis.call("HDEL", requests, ARGV[i])
    end
  end
end

-- Requests and mark go together: who has requests in hand is always marked as working.
local function stop(name)
  for _, id in ipairs(redis.call("SMEMBERS", hand_of(name))) do
    put_in_line("-inf", id) -- at the head of the line, where it was when it was taken
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
  redis.call("DEL", run, nodes, working, seen, requests, queue)
  redis.call("SET", ended, "", "EX", MARK_OF_THE_END_S)
  redis.call("PUBLISH", news, "done")
end
