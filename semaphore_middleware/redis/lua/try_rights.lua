-- Each command that the other scripts use, once; shared/try_rights.lua tries them.
-- KEYS: a hash and a sorted set to try commands on; then others, which are only named. ARGV: a channel
-- that nobody hears.
-- Reply: the commands that this user may not use.

local HASH, QUEUE = KEYS[1], KEYS[2]
local COMMANDS = {
  { 'TIME' },
  { 'INFO', 'stats' },
  { 'HSET', HASH, 'trial', 1 },
  { 'HGET', HASH, 'trial' },
  { 'HMGET', HASH, 'trial' },
  { 'HGETALL', HASH },
  { 'HLEN', HASH },
  { 'HDEL', HASH, 'trial' },
  { 'PEXPIRE', HASH, 1000 },
  { 'PEXPIREAT', HASH, 1 },
  { 'DEL', HASH },
  { 'ZADD', QUEUE, 0, 'trial' },
  { 'PEXPIRE', QUEUE, 1000 }, -- if it may not be deleted
  { 'ZRANGE', QUEUE, 0, -1 },
  { 'ZREM', QUEUE, 'trial' },
  { 'PUBLISH', ARGV[1], '' },
}

@include(shared/try_rights)
