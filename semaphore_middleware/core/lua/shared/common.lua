-- Shared by `sync`, `evict`, `inspect` and `forget`: what calls about scopes have in common.
-- KEYS: epoch; rules; index, a sorted set of the scopes for commands that list them, by when they leave it;
-- then for each scope: scope, a hash with the fields "state", "learned" and "node:<name>" for each entry;
-- queue, a sorted set of the nodes that wait, by their order. ARGV[2]: the node.
-- Each redis.call costs more than its data, so a scope is read by one and written by one.

@include(shared/clock)

local NODE = ARGV[2]
local OWN = 'node:' .. NODE
local KEPT = DAY -- how long keys that no call names are kept
local LISTED = math.max(600000, 4 * LEASE) -- and how long the index has a scope that no call names (ms)
-- How long a closed entry's limit may still hold. Nodes call every third of a lease, so it ends within a
-- lease; looking at all entries sooner would cost more.
local LOOSENING = LEASE / 2
local PREFIX = string.sub(KEYS[1], 1, -1 - #':epoch')

-- The text of an error at a scope whose keys somebody has overwritten. The server's own errors are raised
-- again.
local function problem_of(raised)
  local OF_SERVER = {
    'OOM', 'READONLY', 'MISCONF', 'NOREPLICAS', 'NOPERM', 'ACL failure', 'The user executing',
  }
  local text = type(raised) == 'table' and raised.err or tostring(raised)
  for _, name in ipairs(OF_SERVER) do
    if string.find(text, name, 1, true) then error(raised, 0) end
  end
  return text
end

local function name_of(key)
  return string.sub(key, #PREFIX + #':scope:' + 1)
end

-- Lists a scope until this moment of the wall clock, and now and then drops others whose moment has passed.
local function list(key, moment)
  local is_new = redis.call('ZADD', KEYS[3], moment, name_of(key)) == 1
  if is_new then redis.call('PEXPIRE', KEYS[3], @constant(index_kept)) end
  if RANDOM >= 1 / 32 then return end
  local over = string.format('(%.0f', WALL)
  local old = redis.call('ZRANGE', KEYS[3], '-inf', over, 'BYSCORE', 'LIMIT', 0, 100)
  if old[1] then redis.call('ZREM', KEYS[3], unpack(old)) end
end

local function check_read(last_value)
  if last_value == nil then error('it is too short', 0) end
end
