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

local MOST_LOOKED_AT = 1000
local looked_at = 0

-- Whether this call has read so many entries that it should not keep other callers waiting any longer.
local function has_looked_enough()
  return looked_at >= MOST_LOOKED_AT
end

-- Calls visit(node, entry) for each open entry.
local function for_each_entry(scope, visit)
  scope.others = scope.others or {}
  local fields = redis.call('HGETALL', scope.key)
  looked_at = looked_at + #fields / 2
  for i = 1, #fields, 2 do
    local node = string.match(fields[i], '^node:(.*)$')
    if node and node ~= NODE and scope.others[node] == nil then
      scope.others[node] = read_entry(fields[i + 1])
    end
  end
  if scope.own then visit(NODE, scope.own) end
  for node, entry in pairs(scope.others) do
    if entry then visit(node, entry) end
  end
end
