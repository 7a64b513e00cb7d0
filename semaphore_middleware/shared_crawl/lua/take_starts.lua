-- Takes start requests from the users' key. Each is a reservation until it is queued. A dead node's go to the
-- next node that asks. A node asks only without reservations: if it has any on the server, the reply with
-- them was lost. If there are many reservations, each call checks some.
-- KEYS: see shared/common.lua; then, if there is one, the users' key: a list, a set, a sorted set (the
-- highest score first) or a stream. The fields of a stream's entry are one JSON object.
-- ARGV: how many at most; a token of this call, part of the ids: a promoted server may lack the last
-- reservations, and a count would give others their ids.
-- Reply: the id and the text of each reservation; the type of the key if it is not one of these four.

@include(shared/common)
@include(shared/joined)

local is_ending = redis.call('HEXISTS', run, 'ending') == 1 -- the key keeps its entries for the next run
local key = not is_ending and KEYS[#KEYS] ~= stats and KEYS[#KEYS]
local most, token = next_number(), next_argument()
local RESERVATIONS_CHECKED = 500
local found = {}

local function reserve(id, text)
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
local kind = key and redis.call('TYPE', key).ok or 'none'
if not POP[kind] then return { found, kind } end

local function pop()
  if kind == 'stream' then return pop_of_stream() end
  local popped = redis.call(POP[kind], key)
  if kind == 'zset' then return popped[1] end -- the second is its score
  return popped
end

stop_dead_nodes()
local cursor = redis.call('HGET', run, 'claims_cursor') or 0
local next_cursor, reserved = unpack(redis.call('HSCAN', claims, cursor, 'COUNT', RESERVATIONS_CHECKED))
redis.call('HSET', run, 'claims_cursor', next_cursor)
for i = 1, #reserved, 2 do
  local owner, text = string.match(reserved[i + 1], '^(%Z*)%z(.*)$')
  if owner == node or not redis.call('ZSCORE', working, owner) then
    reserve(reserved[i], text)
  end
end
while kind ~= 'none' and #found < 2 * most do
  local text = pop()
  if not text then break end
  reserve(#found .. ':' .. token, text) -- promise: reservation of a lost start
end
if #found > 0 then renew_lease() end
return { found, '' }
