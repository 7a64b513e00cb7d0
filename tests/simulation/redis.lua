-- A small Redis: the commands that our scripts and nodes use, on keys that expire by a clock that the
-- simulation sets. It refuses writes where a real one would: in scripts that only read, when its memory is full,
-- and as a master without replicas. `tests/simulation/test_redis.py` compares its replies with a real server's.

DB = {} -- key -> { h = field -> value (of sets and sorted sets: member -> true or score), ex = when it ends }
WALL = 0 -- its clock, ms
RUN_ID, REPLICATION_ID, EVICTED, POLICY = 'run', 'replication', 0, 'noeviction'
IS_FULL, LACKS_REPLICAS = false, false
PUBLISH = nil -- function(channel, message)
WITNESS = nil -- function(key, field, new, old): sees each field of a hash that is set

local is_read_only, has_written, ran_full

local function fail(text)
  error({ err = text }, 0)
end

local function text_of(value)
  return type(value) == 'number' and string.format('%.17g', value) or value
end

local function look(key)
  local entry = DB[key]
  if entry and entry.ex and WALL >= entry.ex then
    DB[key] = nil
    return nil
  end
  return entry
end

local function fields_of(key)
  local entry = look(key)
  return entry and entry.h or {}
end

local function written(key)
  local entry = look(key)
  if not entry then
    entry = { h = {} }
    DB[key] = entry
  end
  return entry
end

local function remove(key, ...)
  local entry, count = look(key), 0
  for i = 1, entry and select('#', ...) or 0 do
    local field = text_of((select(i, ...)))
    if entry.h[field] ~= nil then
      entry.h[field], count = nil, count + 1
    end
  end
  if entry and next(entry.h) == nil then DB[key] = nil end
  return count
end

local function delete(...)
  local count = 0
  for i = 1, select('#', ...) do
    local key = select(i, ...)
    if look(key) then count = count + 1 end
    DB[key] = nil
  end
  return count
end

local function expire(key, at)
  local entry = look(key)
  if not entry then return 0 end
  entry.ex = at
  look(key)
  return 1
end

local function sorted(key)
  local scores, members = fields_of(key), {}
  for member in pairs(scores) do
    members[#members + 1] = member
  end
  table.sort(members, function(one, other)
    if scores[one] ~= scores[other] then return scores[one] < scores[other] end
    return one < other
  end)
  return members, scores
end

local function bound(text)
  local open = string.sub(text, 1, 1) == '('
  local name = open and string.sub(text, 2) or text
  local number = name == '-inf' and -math.huge or (name == 'inf' or name == '+inf') and math.huge or tonumber(name)
  return number, open
end

local function by_score(members, scores, lowest, highest)
  local low, is_low_open = bound(text_of(lowest))
  local high, is_high_open = bound(text_of(highest))
  local found = {}
  for _, member in ipairs(members) do
    local score = scores[member]
    if (score > low or (score == low and not is_low_open)) and (score < high or (score == high and not is_high_open)) then
      found[#found + 1] = member
    end
  end
  return found
end

local function by_name(members, first, last)
  local function passes(text, member, is_lower)
    local sign, name = string.sub(text, 1, 1), string.sub(text, 2)
    if text == '-' then return is_lower end
    if text == '+' then return not is_lower end
    if member == name then return sign == '[' end
    return (member > name) == is_lower
  end
  local found = {}
  for _, member in ipairs(members) do
    if passes(first, member, true) and passes(last, member, false) then found[#found + 1] = member end
  end
  return found
end

local READ = {}

function READ.TIME()
  local seconds = math.floor(WALL / 1000)
  return { string.format('%d', seconds), string.format('%d', math.floor((WALL - seconds * 1000) * 1000)) }
end

function READ.INFO()
  return table.concat({
    '# Server', 'redis_version:7.2.0', 'redis_mode:standalone', 'run_id:' .. RUN_ID, 'role:master',
    'master_replid:' .. REPLICATION_ID, 'maxmemory:1000000', 'maxmemory_policy:' .. POLICY,
    'evicted_keys:' .. EVICTED, '',
  }, '\r\n')
end

function READ.EXISTS(...)
  local count = 0
  for i = 1, select('#', ...) do
    if look((select(i, ...))) then count = count + 1 end
  end
  return count
end

function READ.HGET(key, field)
  local value = fields_of(key)[text_of(field)]
  return value == nil and false or value
end
READ.ZSCORE = function(key, member)
  local score = fields_of(key)[member]
  return score and text_of(score) or false
end

function READ.HMGET(key, ...)
  local fields, values = fields_of(key), {}
  for i = 1, select('#', ...) do
    local value = fields[text_of((select(i, ...)))]
    values[i] = value ~= nil and value or false
  end
  return values
end

function READ.HGETALL(key)
  local reply = {}
  for field, value in pairs(fields_of(key)) do
    reply[#reply + 1] = field
    reply[#reply + 1] = value
  end
  return reply
end

-- All at once, as in a small hash.
function READ.HSCAN(key)
  local fields, names, reply = fields_of(key), sorted(key), {}
  for _, name in ipairs(names) do
    reply[#reply + 1] = name
    reply[#reply + 1] = fields[name]
  end
  return { '0', reply }
end

function READ.HLEN(key)
  local count = 0
  for _ in pairs(fields_of(key)) do
    count = count + 1
  end
  return count
end
READ.ZCARD = READ.HLEN

function READ.HEXISTS(key, field)
  return fields_of(key)[text_of(field)] ~= nil and 1 or 0
end

function READ.ZLEXCOUNT(key, first, last)
  return #by_name(sorted(key), first, last)
end

function READ.ZRANGE(key, first, last, ...)
  local members, scores = sorted(key)
  local options, from, most = {}, 0, math.huge
  for i = 1, select('#', ...) do
    local option = select(i, ...)
    options[option] = true
    if option == 'LIMIT' then
      from, most = tonumber((select(i + 1, ...))), tonumber((select(i + 2, ...)))
      most = most < 0 and #members or most
    end
  end
  if options.BYSCORE and options.REV then
    local found = by_score(members, scores, last, first)
    members = {}
    for i = #found, 1, -1 do
      members[#members + 1] = found[i]
    end
  elseif options.BYSCORE then
    members = by_score(members, scores, first, last)
  elseif options.BYLEX then
    members = by_name(members, first, last)
  else
    from = tonumber(first)
    from = from < 0 and math.max(0, #members + from) or from
    last = tonumber(last)
    most = (last < 0 and #members + last or last) - from + 1
  end
  local reply = {}
  for i = from + 1, math.min(#members, from + most) do
    reply[#reply + 1] = members[i]
    if options.WITHSCORES then reply[#reply + 1] = text_of(scores[members[i]]) end
  end
  return reply
end

function READ.SCAN(_, _, pattern)
  local start, keys = string.gsub(string.gsub(pattern, '%*$', ''), '\\', ''), {}
  for key in pairs(DB) do
    if look(key) and string.sub(key, 1, #start) == start then keys[#keys + 1] = key end
  end
  table.sort(keys)
  return { '0', keys }
end

local FREE = {} -- commands that write, and need no memory

function FREE.HDEL(key, ...) return remove(key, ...) end
FREE.ZREM = FREE.HDEL
function FREE.DEL(...) return delete(...) end
FREE.UNLINK = FREE.DEL
function FREE.PEXPIRE(key, milliseconds) return expire(key, WALL + tonumber(milliseconds)) end
function FREE.PEXPIREAT(key, at) return expire(key, tonumber(at)) end
function FREE.PERSIST(key)
  local entry = look(key)
  if not (entry and entry.ex) then return 0 end
  entry.ex = nil
  return 1
end
function FREE.ZREMRANGEBYSCORE(key, lowest, highest)
  local members, scores = sorted(key)
  return remove(key, unpack(by_score(members, scores, lowest, highest)))
end

local WRITE = {}

function WRITE.HSET(key, ...)
  local entry, new = written(key), 0
  for i = 1, select('#', ...), 2 do
    local field, value = text_of((select(i, ...))), text_of((select(i + 1, ...)))
    if WITNESS then WITNESS(key, field, value, entry.h[field]) end
    if entry.h[field] == nil then new = new + 1 end
    entry.h[field] = value
  end
  return new
end

function WRITE.HINCRBY(key, field, by)
  local entry = written(key)
  local value = (tonumber(entry.h[field]) or 0) + by
  entry.h[field] = text_of(value)
  return value
end

function WRITE.ZADD(key, ...)
  local entry, new = written(key), 0
  for i = 1, select('#', ...), 2 do
    local score, member = select(i, ...)
    if entry.h[member] == nil then new = new + 1 end
    entry.h[member] = tonumber(score)
  end
  return new
end

local function call(name, ...)
  if READ[name] then return READ[name](...) end
  if name == 'PUBLISH' then
    local channel, message = ...
    PUBLISH(channel, text_of(message))
    return 1
  end
  local free, write = FREE[name], WRITE[name]
  if not (free or write) then fail('ERR unknown command ' .. name) end
  if is_read_only then fail('ERR Write commands are not allowed from read-only scripts.') end
  if LACKS_REPLICAS then fail('NOREPLICAS Not enough good replicas to write.') end
  if write and ran_full and not has_written then
    fail("OOM command not allowed when used memory > 'maxmemory'.")
  end
  has_written = true
  return (free or write)(...)
end

redis = { call = call }

function redis.pcall(...)
  local done, reply = pcall(call, ...)
  if done then return reply end
  return type(reply) == 'table' and reply or { err = tostring(reply) }
end

function redis.error_reply(text)
  return { err = text }
end

local function copied(value)
  if type(value) ~= 'table' then return value end
  local copy = {}
  for name, part in pairs(value) do
    copy[name] = copied(part)
  end
  return copy
end

-- What is packed stays a table: nobody looks inside.
cmsgpack = {
  pack = function(...) return copied({ n = select('#', ...), ... }) end,
  unpack = function(packed) return unpack(copied(packed), 1, packed.n) end,
}

-- Runs a function as a command or a script; returns its reply, or the text of an error and whether it is a bug.
local protected = pcall

-- Nobody overwrites our keys here: what our scripts catch is a mistake of theirs, and is to be seen.
function pcall(run, ...)
  return true, run(...)
end

function RUN(run, reads_only, arguments)
  is_read_only, has_written, ran_full = reads_only, false, IS_FULL
  local done, reply
  if arguments then
    done, reply = protected(run, unpack(arguments))
  else
    done, reply = protected(run)
  end
  if done then return reply, false end
  return { err = type(reply) == 'table' and reply.err or tostring(reply) }, type(reply) ~= 'table'
end

function SNAPSHOT()
  local copy = {}
  for key, entry in pairs(DB) do
    local fields = {}
    for field, value in pairs(entry.h) do
      fields[field] = value
    end
    copy[key] = { h = fields, ex = entry.ex }
  end
  return copy
end

-- Runs a script on a copy of the data, and tells nobody. Returns the reply, and the copy.
function RUN_ASIDE(run)
  local data, publish, witness = DB, PUBLISH, WITNESS
  DB, PUBLISH, WITNESS = SNAPSHOT(), function() end, false
  local reply = RUN(run, false)
  local copy = DB
  DB, PUBLISH, WITNESS = data, publish, witness
  return reply, copy
end

function IS_SAME(one, other)
  if type(one) ~= 'table' or type(other) ~= 'table' then return one == other end
  for name, value in pairs(one) do
    if not IS_SAME(value, other[name]) then return false end
  end
  for name in pairs(other) do
    if one[name] == nil then return false end
  end
  return true
end
