-- Shared by `sync` and `forget`: the last working limit of a site that a round of answers has borne out.

local function limit_key(scope)
  return PREFIX .. ':limit:' .. name_of(scope)
end

local function remember_limit(scope, working)
  redis.call('HSET', limit_key(scope), 'working', working)
  redis.call('PEXPIRE', limit_key(scope), REMEMBERED)
end

-- 0: there is none.
local function remembered_limit(scope)
  return tonumber(redis.call('HGET', limit_key(scope), 'working') or 0)
end
