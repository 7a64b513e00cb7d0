-- Takes start requests from a key that users fill. Each is a claim until it is queued: what a dead node has
-- claimed is given to the next one that asks.
-- KEYS: see shared/common.lua; then the users' key: a list, a set, a sorted set (the highest score first) or
-- a stream, whose entries' fields are then one JSON object.
-- ARGV: how many at most; those that the node has claimed and not queued yet: how many, and their ids.
-- Reply: the id and the text of each claim; the type of the key if it is another one.

@include(shared/common)
@include(shared/joined)

local key, most, found, known = KEYS[#KEYS], next_number(), {}, {}
for _ = 1, next_number() do
  known[next_argument()] = true
end

local function claim(id, text)
  redis.call('HSET', claims, id, node .. '\0' .. text)
  table.insert(found, id)
  table.insert(found, text)
end

local function pop_of_stream()
  local entry = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
  if not entry then return nil end
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  redis.call('XDEL', key, entry[1])
  return cjson.encode(fields)
end

local POP = { list = 'LPOP', set = 'SPOP', zset = 'ZPOPMAX', stream = 'XRANGE', none = '' }
local kind = redis.call('TYPE', key).ok
if not POP[kind] then return { found, kind } end

local function pop()
  if kind == 'stream' then return pop_of_stream() end
  local popped = redis.call(POP[kind], key)
  if kind == 'zset' then return popped[1] end -- the other one is its score
  return popped
end

stop_dead_nodes()
local claimed = redis.call('HGETALL', claims)
for i = 1, #claimed, 2 do
  local owner, text = string.match(claimed[i + 1], '^(%Z*)%z(.*)$')
  local is_lost = owner == node and not known[claimed[i]]
  if is_lost or (owner ~= node and not redis.call('ZSCORE', working, owner)) then
    claim(claimed[i], text)
  end
end
while kind ~= 'none' and #found < 2 * most do
  local text = pop()
  if not text then break end
  claim(tostring(redis.call('HINCRBY', run, 'claims', 1)), text)
end
if #found > 0 then renew_lease() end
return { found, '' }
