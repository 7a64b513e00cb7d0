-- Begins an epoch, unless the server's present incarnation has one, and returns how long no permit is
-- granted.
-- KEYS: epoch, rules, index.
-- ARGV: see `clock`; an id for a new epoch; the protocol's version; the recovery wait (ms); the wait on a
--       server that was started when nobody held a permit and was not used since (ms); the mode; the output
--       of INFO, called by the node over the same connection, if scripts may not use it (otherwise empty).
--       The mode is `trusted` if an operator declares that no wait is needed: this also ends a wait that has
--       begun. `look` only replies what a node would get, and changes nothing. Otherwise it is empty.
-- Reply: the epoch's id (empty: the server is in use by another version), its version, how long nothing
--        is granted from now on (ms), 1 if the server may evict keys.

@include(shared/clock)

local ID, VERSION, WAIT, WAIT_IF_EMPTY = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local MODE = ARGV[6]
local UNUSED = 4 * LEASE -- after so long without a call, no node of another version is left

local HAS_INFO = ARGV[7] ~= ''
local info = HAS_INFO and ARGV[7] or redis.call('INFO')
local function info_of(name)
  return string.match(info, '\n' .. name .. ':([^\r\n]*)')
end

-- A replica that accepts writes: this server was a master when the node connected.
if info_of('role') ~= 'master' then return redis.error_reply('READONLY this is a replica') end

-- As long as this stays the same, the server has lost no data. The replication id changes in a failover, even
-- if the same process is the master again.
local run_id = info_of('run_id')
local incarnation = run_id .. ' ' .. (info_of('master_replid') or '')
local evictions -- nil: it never evicts
if (info_of('maxmemory_policy') or 'noeviction') ~= 'noeviction' and (info_of('maxmemory') or '0') ~= '0' then
  evictions = info_of('evicted_keys') or '0'
  incarnation = incarnation .. ' without ' .. evictions .. ' keys'
end

local known_incarnation, version, empty_run_id =
  unpack(redis.call('HMGET', KEYS[1], 'life', 'version', 'started_empty'))
-- promise: another version
if version and version ~= VERSION and math.abs(WALL - wall) < UNUSED then return { '', version, 0, 0 } end
local is_first = not EPOCH
if known_incarnation ~= incarnation or version ~= VERSION then -- rule 2: another incarnation
  EPOCH, FROM = ID, NOW + (empty_run_id == run_id and WAIT_IF_EMPTY or WAIT) -- rule 2: recovery wait
end
if MODE == 'trusted' then FROM = math.min(FROM, NOW) end
if MODE ~= 'look' then
  if is_first and not evictions then -- there are no scopes yet, so the index has all
    redis.call('ZADD', KEYS[3], 'inf', @constant(complete))
    redis.call('PEXPIRE', KEYS[3], @constant(index_kept))
  end
  -- The clock goes on, as leases that were saved in an earlier incarnation are timed by it.
  write_clock()
  if EPOCH == ID then
    redis.call('HSET', KEYS[1], 'id', ID, 'life', incarnation, 'version', VERSION, 'from', FROM,
      'evicted', not HAS_INFO and evictions or -1, 'rules', redis.call('HLEN', KEYS[2]))
    redis.call('HDEL', KEYS[1], 'started_empty')
  elseif MODE == 'trusted' then
    redis.call('HSET', KEYS[1], 'from', FROM)
  end
end
return { EPOCH, VERSION, math.max(0, math.ceil(FROM - NOW)), evictions and 1 or 0 }
