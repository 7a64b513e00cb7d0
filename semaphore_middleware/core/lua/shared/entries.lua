-- Shared by `sync`, `evict`, `inspect` and `forget`: the nodes' entries of a scope, fields of its hash.

local function read_entry(text)
  if not text then return nil end
  local entry = { @zero(entry), is_queued = false }
  @entry.(entry) = cmsgpack.unpack(text)
  check_read(entry.burst)
  entry.is_queued = entry.requested > entry.granted
  return entry
end

local function pack_entry(entry)
  return cmsgpack.pack(@entry.(entry))
end

local function held_by(entry)
  return entry.granted - entry.returned
end

local function waiting_at(entry)
  return math.max(0, entry.requested - entry.granted)
end

-- A node's entry; false: it has none.
local function entry_of(scope, node)
  if node == NODE then return scope.own end
  scope.others = scope.others or {}
  if scope.others[node] == nil then
    scope.others[node] = read_entry(redis.call('HGET', scope.key, 'node:' .. node)) or false
  end
  return scope.others[node]
end

-- A call's work must not grow with nodes times sites. Once it has looked at this many entries, it reads
-- those of no other scope, and grants to one node at each. What is left is decided at a later update.
local MOST_LOOKED_AT = 500
local looked_at = 0 -- entries; each grant counts as one

local function has_looked_enough()
  return looked_at >= MOST_LOOKED_AT
end

-- Reads all entries of a scope; false: this call has looked at enough.
local function read_entries(scope)
  if scope.has_entries then return true end
  if has_looked_enough() then return false end -- promise: short calls
  scope.others, scope.has_entries = scope.others or {}, true
  local fields = redis.call('HGETALL', scope.key)
  for i = 1, #fields, 2 do
    local node = string.match(fields[i], '^node:(.*)$')
    if node and node ~= NODE and scope.others[node] == nil then
      scope.others[node] = read_entry(fields[i + 1])
    end
  end
  return true
end

-- Calls visit(node, entry) for each open entry; false: for none, as above.
local function for_each_entry(scope, visit)
  if not read_entries(scope) then return false end
  if scope.own then visit(NODE, scope.own) end
  for node, entry in pairs(scope.others) do
    looked_at = looked_at + 1
    if entry then visit(node, entry) end
  end
  return true
end
