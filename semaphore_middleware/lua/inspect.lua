-- Looks at a scope and changes nothing.
-- KEYS: held, line, waiting, state, epoch. ARGV: the clock's longest step (ms).
-- Reply: limit in force (0: idle), holders, waiters in the order of the line; each of them as
--        id, age (ms; of a waiter since it asked, of a holder since its grant), lease left (ms).

local wall, clock = unpack(redis.call('HMGET', KEYS[5], 'wall', 'clock'))
local now = clock and bucket_clock(wall, clock, tonumber(ARGV[1])) or WALL

local function member(id, lease_end)
  local since = tonumber(redis.call('HGET', KEYS[4], 'since:' .. id)) or now
  return { id, math.max(0, now - since), math.floor(lease_end - now) }
end

local holders, waiters = {}, {}
local held = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #held, 2 do
  local lease_end = tonumber(held[i + 1])
  if lease_end > now then table.insert(holders, member(held[i], lease_end)) end
end
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local lease_end = tonumber(redis.call('ZSCORE', KEYS[3], id)) or now
  if lease_end > now then table.insert(waiters, member(id, lease_end)) end
end
local limit = tonumber(redis.call('HGET', KEYS[4], 'limit')) or 0
return { limit, holders, waiters }
