-- Shared by `ask_robotstxt` and `put_robotstxt`: how a site's robots.txt is read and written back.
-- KEYS: robotstxt, a hash with a record for each origin (scheme, host, port), and in "bytes" the size of
-- all; robotstxt_ends, a sorted set of these origins, by when their records are of no more use.
-- ARGV: the node; who asks, as several crawls may be one node; the lease (ms); the origin.
-- Every time is in milliseconds, by the server's wall clock.

local RECORDS, ENDS = KEYS[1], KEYS[2]
local NODE, ASKER, LEASE, ORIGIN = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local PREFIX = string.sub(RECORDS, 1, -1 - #':robotstxt')
local DAY = 86400000
local MOST, MOST_BYTES = 100000, 67108864 -- records, and their size: 64 MiB
local MOST_REMOVED = 1000 -- in one call
local time = redis.call('TIME')
local WALL = time[1] * 1000 + math.floor(time[2] / 1000)

-- Time until `ending`. 0: it is over; or it is further away than `most`, so the server's clock was set back.
local function left_until(ending, most)
  local left = ending - WALL
  return left <= most and math.max(0, left) or 0
end

local function read_record()
  local packed = redis.call('HGET', RECORDS, ORIGIN)
  local record = {
    size = packed and #ORIGIN + #packed or 0,
    fetcher = '', lease_end = 0, -- who fetches the file, and until when others leave it to that one
    waiters = {}, -- nodes that wait for it
    valid_until = 0, data = '', -- what was fetched last
  }
  if packed then
    record.fetcher, record.lease_end, record.waiters, record.valid_until, record.data =
      cmsgpack.unpack(packed)
  end
  return record
end

-- Removes records that are of no more use, and the oldest of too many. Returns the size of the others.
local function remove_old(bytes)
  local count = redis.call('HLEN', RECORDS) - 1
  for _ = 1, MOST_REMOVED do
    local origin, ending = unpack(redis.call('ZRANGE', ENDS, 0, 0, 'WITHSCORES'))
    local is_over = not origin or tonumber(ending) <= WALL or count > MOST or bytes > MOST_BYTES
    if not is_over or not origin or origin == ORIGIN then break end
    bytes = bytes - #origin - #(redis.call('HGET', RECORDS, origin) or '')
    count = count - redis.call('HDEL', RECORDS, origin)
    redis.call('ZREM', ENDS, origin)
  end
  return bytes
end

local function write_record(record)
  local packed =
    cmsgpack.pack(record.fetcher, record.lease_end, record.waiters, record.valid_until, record.data)
  local bytes = (redis.call('HGET', RECORDS, 'bytes') or 0) - record.size + #ORIGIN + #packed
  redis.call('HSET', RECORDS, ORIGIN, packed)
  redis.call('ZADD', ENDS, WALL + DAY, ORIGIN)
  redis.call('HSET', RECORDS, 'bytes', remove_old(bytes))
  redis.call('PEXPIRE', RECORDS, DAY)
  redis.call('PEXPIRE', ENDS, DAY)
end
