-- Begins an epoch: records which run of the server this is, and from when on it may grant.
-- KEYS: epoch. ARGV: the server's run id; 1 if the server evicts keys; how long to grant nothing, how
-- long to keep the key, the clock's longest step (all ms).
-- Reply: how long nothing is granted from now on (ms).

local LIFE = life_of(ARGV[1], ARGV[2])
local WAIT, KEPT, STEP = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local life, from, wall, clock = unpack(redis.call('HMGET', KEYS[1], 'life', 'from', 'wall', 'clock'))
-- Leases of an earlier run, if any were saved, count by the clock kept here: it goes on.
local now = clock and bucket_clock(wall, clock, STEP) or WALL
if life ~= LIFE then
  from = now + WAIT
  local expires = WALL + KEPT + WAIT
  redis.call('HSET', KEYS[1], 'life', LIFE, 'from', from, 'expires', expires,
    'wall', WALL, 'clock', now)
  redis.call('PEXPIREAT', KEYS[1], expires)
end
return math.max(0, math.ceil(from - now))
