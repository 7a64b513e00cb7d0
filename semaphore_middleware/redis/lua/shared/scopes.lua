-- Shared by `sync`, `evict`, `inspect` and `forget`: what calls about scopes have in common.
-- KEYS: epoch; rules; then for each scope: scope, a hash with the fields "state", "learned" and "node:<name>"
-- for each account; queue, a sorted set of the nodes that wait, by whose turn it is. ARGV[2]: the node.
-- Each redis.call costs more than what it carries, so a scope is read by one and written by one.

@include(shared/clock)

local NODE = ARGV[2]
local OWN = 'node:' .. NODE
local KEPT = DAY -- how long keys that no call names are kept
-- How long a closed account's limit may still hold. Nodes call every third of a lease, so it ends within a
-- lease; looking at all accounts sooner would cost more.
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

local function check_read(last_value)
  if last_value == nil then error('it is too short', 0) end
end
