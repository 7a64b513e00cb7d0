-- Shared by `sync` and `forget`: what the history keeps of a site besides the counts of nodes.

@include(shared/hours)

local function limit_key(scope)
  return HISTORY_KEY .. ':limit:' .. name_of(scope)
end

-- Keeps a working limit of a site that a whole round of answers has borne out.
local function remember_limit(scope, working)
  if HISTORY == 0 then return end
  redis.call('HSET', limit_key(scope), 'working', working)
  redis.call('PEXPIRE', limit_key(scope), HISTORY)
end

-- The last working limit that was kept; 0: none.
local function remembered_limit(scope)
  return HISTORY > 0 and tonumber(redis.call('HGET', limit_key(scope), 'working') or 0) or 0
end

-- Notes a pause that ends in `left` ms. If it is known already, it only gets longer.
local function note_pause(scope, paused_at, left, report)
  local MOST_PAUSES = 300 -- of an hour
  if HISTORY == 0 then return end
  local key, field = pause_place(paused_at, name_of(scope))
  local @(pause) = 0, 0, 0, -1
  local known = redis.call('HGET', key, field)
  if known then
    @(pause) = cmsgpack.unpack(known)
  elseif redis.call('HLEN', key) > MOST_PAUSES then
    return
  end
  length = math.max(length, math.ceil(WALL - paused_at + left))
  asked, refused = math.max(asked, report.retry_after), math.max(refused, math.min(1, report.refused))
  redis.call('HSET', key, field, cmsgpack.pack(@(pause)))
  redis.call('PEXPIRE', key, HOUR + HISTORY)
  redis.call('ZADD', HISTORY_KEY, WALL, name_of(scope))
  redis.call('PEXPIRE', HISTORY_KEY, HOUR + HISTORY)
end
