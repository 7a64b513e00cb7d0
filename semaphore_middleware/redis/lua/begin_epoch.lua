-- Begins an epoch, unless this life of the server has one: from when on permits may be granted.
-- KEYS: epoch, rules. ARGV: see `clock`; the server's life; an id for the epoch; the protocol's version;
-- how long to grant nothing (ms); 1 if an operator vouches that this need not be, also where it has begun.
-- Reply: the epoch's id (empty: the server is in use by another version), its version, how long nothing
--        is granted from now on (ms).

local LIFE, ID, VERSION, WAIT = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local IS_TRUSTED = ARGV[6] == '1'
local UNUSED = 4 * LEASE -- after so long without a call nobody speaks another version any more
local life, version = unpack(redis.call('HMGET', KEYS[1], 'life', 'version'))

if version and version ~= VERSION and math.abs(WALL - wall) < UNUSED then return { '', version, 0 } end
-- The clock goes on: leases of an earlier life, if any were saved, count by it.
write_clock()
if life ~= LIFE or version ~= VERSION then
  EPOCH, FROM = ID, NOW + WAIT
  redis.call('HSET', KEYS[1], 'id', ID, 'life', LIFE, 'version', VERSION, 'from', FROM,
    'rules', redis.call('HLEN', KEYS[2]))
end
if IS_TRUSTED and FROM > NOW then
  FROM = NOW
  redis.call('HSET', KEYS[1], 'from', FROM)
end
return { EPOCH, VERSION, math.max(0, math.ceil(FROM - NOW)) }
