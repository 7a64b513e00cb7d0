-- Shared by all scripts: the server's time, and the epoch with its clock.
-- KEYS[1]: epoch, a hash: id, life, version, from, wall, clock, rules.
-- Leases and starts are timed by the epoch's clock. It follows the server's wall clock by at most `step`
-- in one call, and does not go back (except by less than an eighth of a step, which is not written
-- down). Nodes renew more often than that, so a wall clock that is set an hour ahead ends no lease of a
-- living node. Every time is in milliseconds.

local time = redis.call('TIME')
local WALL = time[1] * 1000 + math.floor(time[2] / 1000)

local function read_epoch(step)
  local id, from, wall, clock, rules =
    unpack(redis.call('HMGET', KEYS[1], 'id', 'from', 'wall', 'clock', 'rules'))
  local epoch = { id = id, from = tonumber(from) or 0, has_rules = rules and rules ~= '0' }
  if clock then
    epoch.now = clock + math.max(0, math.min(WALL - wall, step))
    epoch.is_behind = epoch.now - clock > step / 8 or WALL < tonumber(wall)
  else
    epoch.now, epoch.is_behind = WALL, true
  end
  return epoch
end

local function write_clock(epoch)
  if epoch.is_behind then redis.call('HSET', KEYS[1], 'wall', WALL, 'clock', epoch.now) end
end
