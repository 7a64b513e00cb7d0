-- Records that the server lives a life the epoch key does not know, and from when it may grant.
-- KEYS: epoch. ARGV: the run id of that life, how long to grant nothing (ms), how long to keep
-- the key (ms). Reply: how long nothing is granted from now on (ms).

local LIFE, WAIT, KEPT = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local life, from = unpack(redis.call('HMGET', KEYS[1], 'life', 'from'))
if life ~= LIFE then
  from = now + WAIT
  redis.call('HSET', KEYS[1], 'life', LIFE, 'from', from, 'expires', now + KEPT + WAIT)
  redis.call('PEXPIRE', KEYS[1], KEPT + WAIT)
end
return math.max(0, math.ceil(tonumber(from) - now))
