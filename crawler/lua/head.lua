-- Put before every script: a crawl's keys, who is asking, and what the scripts have in common.
-- KEYS: requests, seen, working, nodes (see shared_crawl.py). ARGV: channel of the news, node.
local requests, seen, working, nodes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local news, node = ARGV[1], ARGV[2]

-- A node that was away while the crawl ended must not leave traces in the next one of that name.
local function takes_part()
  return redis.call("SISMEMBER", nodes, node) == 1
end

local function now_ms()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function work_for(lease_ms)
  redis.call("ZADD", working, now_ms() + lease_ms, node)
end
