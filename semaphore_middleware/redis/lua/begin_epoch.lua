-- Begins an epoch, unless this life of the server has one: from when on permits may be granted.
-- KEYS: epoch, rules. ARGV: the server's life; an id for the epoch; the protocol's version; how long to
-- grant nothing, the clock's longest step, after how long without a call a server counts as unused (ms).
-- Reply: the epoch's id (empty: the server is in use by another version), its version, how long nothing
--        is granted from now on (ms), 1 if this call began it.

local LIFE, ID, VERSION = ARGV[1], ARGV[2], ARGV[3]
local WAIT, STEP, UNUSED = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local life, version, wall = unpack(redis.call('HMGET', KEYS[1], 'life', 'version', 'wall'))
local epoch = read_epoch(STEP) -- leases of an earlier life, if any were saved, count by its clock

if version and version ~= VERSION and math.abs(WALL - wall) < UNUSED then return { '', version, 0, 0 } end
local is_new = life ~= LIFE or version ~= VERSION
if is_new then
  epoch.id, epoch.from, epoch.is_behind = ID, epoch.now + WAIT, true
  redis.call('HSET', KEYS[1], 'id', ID, 'life', LIFE, 'version', VERSION, 'from', epoch.from,
    'rules', redis.call('HLEN', KEYS[2]))
end
write_clock(epoch)
return { epoch.id, VERSION, math.max(0, math.ceil(epoch.from - epoch.now)), is_new and 1 or 0 }
