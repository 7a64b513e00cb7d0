-- Shared by all scripts that know time: what a call begins with, and the epoch with its clock.
-- KEYS[1]: epoch, a hash: id, life, version, from, wall, clock, rules (how many there are).
-- ARGV[1]: four numbers, packed: lease, the clock's longest step (ms); a random number in [0, 1); how many
--          keys the server had evicted when the epoch was joined (-1: it never evicts).
-- Leases and starts are timed by the epoch's clock. It follows the server's wall clock by at most a step
-- in one call, and does not go back (except by less than an eighth of a step, which is not written
-- down). Nodes renew more often than that, so a wall clock that is set an hour ahead ends no lease of a
-- living node. Every time is in milliseconds.
-- A call makes anew each function that it comes by, and this costs more than to run most of them. So
-- what few calls need is made inside a function of its own.

local LEASE, STEP, RANDOM, EVICTED = struct.unpack('>dddd', ARGV[1])
local time = redis.call('TIME')
local WALL = time[1] * 1000 + math.floor(time[2] / 1000)

local EPOCH, from, wall, clock, rules =
  unpack(redis.call('HMGET', KEYS[1], 'id', 'from', 'wall', 'clock', 'rules'))
local FROM = tonumber(from) or 0 -- nothing is granted before
local NOW = clock and clock + math.max(0, math.min(WALL - wall, STEP)) or WALL
local IS_CLOCK_LATE = not clock or NOW - clock > STEP / 8 or WALL < tonumber(wall)
