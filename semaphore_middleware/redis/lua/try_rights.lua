-- Tries each command that other scripts use, so that a right that is missing, or a command that was renamed,
-- is found at the start, not when it is first needed. Leaves nothing.
-- KEYS: a hash and a sorted set to try commands on; then others, which are only named.
-- ARGV: a channel that nobody hears; the commands that are used.
-- Reply: those that this user may not use.

local HASH, QUEUE = KEYS[1], KEYS[2]
local COMMANDS = {
  { 'TIME' },
  { 'INFO', 'stats' },
  { 'HSET', HASH, 'trial', 1 },
  { 'HGET', HASH, 'trial' },
  { 'HMGET', HASH, 'trial' },
  { 'HGETALL', HASH },
  { 'HEXISTS', HASH, 'trial' },
  { 'HLEN', HASH },
  { 'HINCRBY', HASH, 'trial', 1 },
  { 'HDEL', HASH, 'trial' },
  { 'EXISTS', HASH },
  { 'PERSIST', HASH },
  { 'PEXPIRE', HASH, 1000 },
  { 'PEXPIREAT', HASH, 1 },
  { 'DEL', HASH },
  { 'ZADD', QUEUE, 0, 'trial' },
  { 'PEXPIRE', QUEUE, 1000 }, -- if it may not be deleted
  { 'ZRANGE', QUEUE, 0, -1 },
  { 'ZSCORE', QUEUE, 'trial' },
  { 'ZCARD', QUEUE },
  { 'ZLEXCOUNT', QUEUE, '-', '+' },
  { 'ZREMRANGEBYSCORE', QUEUE, 1, 1 },
  { 'ZREM', QUEUE, 'trial' },
  { 'UNLINK', HASH, QUEUE },
  { 'PUBLISH', ARGV[1], '' },
}

local is_used, denied = {}, {}
for i = 2, #ARGV do
  is_used[ARGV[i]] = true
end
for _, command in ipairs(COMMANDS) do
  local reply = is_used[command[1]] and redis.pcall(unpack(command))
  local problem = type(reply) == 'table' and reply.err
  if problem and (string.find(problem, 'ACL failure') or string.find(problem, 'The user executing')
    or string.find(problem, '[Uu]nknown')) then -- the last: it was renamed
    table.insert(denied, command[1])
  elseif problem then
    return reply
  end
end
return denied
