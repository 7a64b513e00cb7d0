-- Shared by `ask_robotstxt` and `put_robotstxt`: what the server keeps of a site's robots.txt.
-- KEYS: robotstxt:<origin>, a hash; robotstxt, a sorted set of all origins (scheme, host and port), by when
-- they were last asked for or fetched.
-- ARGV: the node; who asks, as several crawls may be one node; the lease (ms); the origin.
-- Every time is in milliseconds, by the server's wall clock.

@include(shared/wall)

local FILE, ORIGINS = KEYS[1], KEYS[2]
local NODE, ASKER, LEASE, ORIGIN = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local MOST = 50000 -- files that are kept

-- What was fetched last, and until when it is valid; who fetches it now, and until when others leave it to
-- that one; the nodes that wait for it.
local kept = redis.call('HMGET', FILE, 'data', 'valid_until', 'fetcher', 'lease_end', 'waiters')
local data, valid_until, fetcher, lease_end = kept[1] or '', kept[2] or 0, kept[3], kept[4] or 0
local waiters = kept[5] and cmsgpack.unpack(kept[5]) or {}

-- Time until `ending`. 0: it is over; or it is further away than `most`, so the server's clock was set back.
local function left_until(ending, most)
  local left = ending - WALL
  return left <= most and math.max(0, left) or 0
end

-- Keeps these fields for a day; of too many files the oldest are dropped.
local function keep(...)
  redis.call('HSET', FILE, ...)
  redis.call('ZADD', ORIGINS, WALL, ORIGIN)
  for _, origin in ipairs(redis.call('ZRANGE', ORIGINS, 0, -1 - MOST)) do
    redis.call('DEL', ORIGINS .. ':' .. origin)
    redis.call('ZREM', ORIGINS, origin)
  end
  redis.call('PEXPIRE', FILE, DAY)
  redis.call('PEXPIRE', ORIGINS, DAY)
end
