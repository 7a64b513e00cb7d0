-- Each command that the frontier's scripts use, once; shared/try_rights.lua of the semaphore tries them.
-- KEYS: a hash and a sorted set to try commands on; then others, which are only named. ARGV: a channel that
-- nobody hears.
-- Reply: the commands that this user may not use.

local HASH, QUEUE = KEYS[1], KEYS[2]
local COMMANDS = {
  { 'TIME' },
  { 'HSET', HASH, 'trial', 1 },
  { 'HGET', HASH, 'trial' },
  { 'HMGET', HASH, 'trial' },
  { 'HEXISTS', HASH, 'trial' },
  { 'HLEN', HASH },
  { 'HINCRBY', HASH, 'trial', 1 },
  { 'HDEL', HASH, 'trial' },
  { 'EXISTS', HASH },
  { 'PEXPIRE', HASH, 1000 },
  { 'PERSIST', HASH },
  { 'ZADD', QUEUE, 0, 'trial' },
  { 'ZRANGE', QUEUE, 0, -1 },
  { 'ZSCORE', QUEUE, 'trial' },
  { 'ZCARD', QUEUE },
  { 'ZLEXCOUNT', QUEUE, '-', '+' },
  { 'ZREMRANGEBYSCORE', QUEUE, 1, 1 },
  { 'ZREM', QUEUE, 'trial' },
  { 'UNLINK', HASH, QUEUE },
  { 'PUBLISH', ARGV[1], '' },
}

@include(shared/try_rights)
