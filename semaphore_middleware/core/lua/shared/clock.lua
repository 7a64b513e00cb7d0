-- Shared by `begin_epoch` and all scripts about scopes: how a call begins, and the epoch with its clock.
-- KEYS[1]: epoch, a hash: id, life, version, from, wall, clock, quiet, rules (how many there are), evicted
--          (how many keys the server had evicted when the epoch was begun; -1: it never evicts, or scripts
--          may not ask), and before its first epoch started_empty (a run id).
-- ARGV[1]: the record `head`.
-- Leases and starts are timed by the epoch's clock. It follows the server's wall clock by at most a step
-- in one call, and does not go back (except by less than an eighth of a step, which is not written
-- down). Nodes renew more often than that, so a wall clock that is set an hour ahead ends no lease of a
-- living node. QUIET adds up the time without calls, as pauses of idle sites end in it, too. It grows by what
-- the wall clock has advanced, but by no more than the time since the caller's last call: that clock may have
-- been set ahead.
-- Every time is in milliseconds.

@include(semaphore_middleware.link:shared/wall)

local LEASE, STEP, RANDOM, SILENT, MACHINE = struct.unpack('@format(head)', ARGV[1])

local EPOCH, from, wall, clock, quiet, rules, evicted =
  unpack(redis.call('HMGET', KEYS[1], 'id', 'from', 'wall', 'clock', 'quiet', 'rules', 'evicted'))
local FROM = tonumber(from) or 0 -- nothing is granted before
local ADVANCE = clock and math.max(0, WALL - wall) or 0 -- promise: clock set back
local NOW = clock and clock + math.min(ADVANCE, STEP) or WALL -- promise: clock ahead
local QUIET = (quiet or 0) + math.max(0, math.min(ADVANCE, SILENT) - STEP)
local IS_CLOCK_LATE = not clock or NOW - clock > STEP / 8 or WALL < tonumber(wall)

local function write_clock()
  redis.call('HSET', KEYS[1], 'wall', WALL, 'clock', NOW, 'quiet', QUIET)
end
