-- Tries each command that the other scripts use, so that a right that is missing is found at the start,
-- not when it is first needed. Leaves nothing.
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
  { 'ZRANGE', QUEUE, 0, -1 },
  { 'ZREM', QUEUE, 'trial' },
  { 'PUBLISH', ARGV[1], '' },
}

local denied = {}
for _, command in ipairs(COMMANDS) do
  local reply = redis.pcall(unpack(command))
  local problem = type(reply) == 'table' and reply.err
  if problem and (string.find(problem, 'ACL failure') or string.find(problem, 'The user executing')) then
    table.insert(denied, command[1])
  elseif problem then
    return reply
  end
end
return denied
