-- Put in front of every verb: how a call is read, how nodes are notified, and the epoch.
-- KEYS: six a scope, in this order: held, line, waiting, state, epoch, rules.
-- ARGV: the head below; then for each scope: limit, delay (ms), jitter (share of the delay), 1 if the
--       limit is adaptive, feedback (see `answers`; else empty), how many permits, and their numbers.
--       A permit's id is "<node>:<number>".
-- Every time is in milliseconds. Each redis.call costs more than what it carries, so nothing is read
-- twice, and many permits go into one command.

local CHANNELS = ARGV[1] -- first part of the channel on which a node is notified
local NODE = ARGV[2]
local LIFE = life_of(ARGV[3], ARGV[4]) -- run id of the server, as the caller knows it
local LEASE = tonumber(ARGV[5])
local STEP = tonumber(ARGV[6]) -- of the clock, in one call
local KEPT = tonumber(ARGV[7]) -- how long an epoch is kept after its last use
local DICE = tonumber(ARGV[8]) -- in [0, 1): each call seeds math.random the same
local HEAD = 8

local own = {} -- id -> number, of those that the call is about

local function node_of(id)
  return own[id] and NODE or string.match(id, '^(.*):')
end

local function number_of(id)
  return own[id] or string.match(id, '^.*:(.*)$')
end

-- A command takes no more than some 8,000 arguments from a script.
local MOST = 1000

local function in_parts(command, key, arguments)
  for i = 1, #arguments, 2 * MOST do
    redis.call(command, key, unpack(arguments, i, math.min(#arguments, i + 2 * MOST - 1)))
  end
end

-- Notifications ----------------------------------------------------------------------------------

local messages = {} -- channel -> the words for that node

local function tell(id, word)
  local channel = CHANNELS .. node_of(id)
  messages[channel] = messages[channel] or {}
  table.insert(messages[channel], word)
end

local function send_messages()
  for channel, words in pairs(messages) do
    redis.call('PUBLISH', channel, table.concat(words, ' '))
  end
end

-- The epoch --------------------------------------------------------------------------------------

local epochs = {} -- epoch key -> its epoch: one look is enough for a call

local function epoch_of(key)
  if epochs[key] then return epochs[key] end
  local life, from, expires, wall, clock =
    unpack(redis.call('HMGET', key, 'life', 'from', 'expires', 'wall', 'clock'))
  local epoch = { known = life == LIFE }
  if epoch.known then
    epoch.now = bucket_clock(wall, clock, STEP)
    epoch.from = tonumber(from)
    epoch.expires = tonumber(expires)
    if epoch.now - clock > STEP / 8 or WALL < tonumber(wall) then
      redis.call('HSET', key, 'wall', WALL, 'clock', epoch.now)
    end
    if epoch.expires < WALL + KEPT / 2 then
      epoch.expires = WALL + KEPT
      redis.call('HSET', key, 'expires', epoch.expires)
      redis.call('PEXPIREAT', key, epoch.expires)
    end
  end
  epochs[key] = epoch
  return epoch
end
