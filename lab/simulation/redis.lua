-- A small Redis: the commands that the scripts and nodes use, on keys that expire by a clock that the
-- simulation sets. It refuses what a real one refuses: arguments and keys of the wrong kind, and writes in
-- scripts that only read, when its memory is full, and as a master without replicas.
-- `lab/simulation/test_redis.py` compares its replies with a real server's.

-- key -> { kind = 'H', 'Z' or 'S', h = field -> value (of a sorted set: member -> score; of a set: member ->
-- 0), ex = when it ends }
DB = {}
WALL = 0 -- its clock, ms
RUN_ID, REPLICATION_ID, EVICTED, POLICY = 'run', 'replication', 0, 'noeviction'
IS_FULL, LACKS_REPLICAS = false, false
POPPED = 0 -- how often a member of a set was
LACKS_INFO = false -- whether scripts may not use INFO
PUBLISH = nil -- function(channel, message)
WITNESS = nil -- function(key, field, new, old): sees each field of a hash that is set

local is_read_only, has_written, ran_full
local protected = pcall

local function fail(text)
  error({ err = text }, 0)
end

-- An error for a command that no server would accept: a bug of the script.
local function fail_as_wrong(text)
  error({ err = text, is_bug = true }, 0)
end

local function text_of(value)
  if type(value) ~= 'number' then return value end
  return string.format(value % 1 == 0 and math.abs(value) < 2 ^ 63 and '%.0f' or '%.17g', value)
end

local function look(key)
  local entry = DB[key]
  if entry and entry.ex and WALL >= entry.ex then
    DB[key] = nil
    return nil
  end
  return entry
end

local function integer(value)
  if not string.find(text_of(value), '^%-?%d+$') then
    fail_as_wrong('ERR value is not an integer or out of range')
  end
  return tonumber(value)
end

local function float(text)
  if text == '-inf' then return -math.huge end
  if text == 'inf' or text == '+inf' then return math.huge end
  return tonumber(text) or fail_as_wrong('ERR value is not a valid float')
end

local function fields_of(key)
  local entry = look(key)
  return entry and entry.h or {}
end

local function written(key, kind)
  local entry = look(key)
  if not entry then
    entry = { kind = kind, h = {} }
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
  local is_open = string.sub(text, 1, 1) == '('
  return float(is_open and string.sub(text, 2) or text), is_open
end

local function by_score(members, scores, lowest, highest)
  local low, is_low_open = bound(text_of(lowest))
  local high, is_high_open = bound(text_of(highest))
  local found = {}
  for _, member in ipairs(members) do
    local score = scores[member]
    if (score > low or (score == low and not is_low_open)) and (score < high or (score == high
      and not is_high_open)) then
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
    if sign ~= '[' and sign ~= '(' then fail_as_wrong('ERR min or max not valid string range item') end
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
  if LACKS_INFO then fail('ERR This Redis command is not allowed from script') end
  return table.concat({
    '# Server', 'redis_version:7.2.0', 'redis_mode:standalone', 'run_id:' .. RUN_ID, 'role:master',
    'master_replid:' .. REPLICATION_ID, 'maxmemory:1000000', 'maxmemory_policy:' .. POLICY,
    'evicted_keys:' .. EVICTED, '',
  }, '\r\n')
end

local TYPES = { H = 'hash', Z = 'zset', S = 'set' }

function READ.TYPE(key)
  local entry = look(key)
  return { ok = entry and TYPES[entry.kind] or 'none' }
end

function READ.EXISTS(...)
  local count = 0
  for i = 1, select('#', ...) do
    if look((select(i, ...))) then count = count + 1 end
  end
  return count
end

function READ.HGET(key, field)
  return fields_of(key)[text_of(field)] or false
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
    reply[#reply + 1] = text_of(fields[name])
  end
  return { '0', reply }
end
READ.ZSCAN = READ.HSCAN

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
      from, most = integer((select(i + 1, ...))), integer((select(i + 2, ...)))
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
    from, last = integer(first), integer(last)
    from = from < 0 and math.max(0, #members + from) or from
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
function FREE.PEXPIRE(key, milliseconds) return expire(key, WALL + integer(milliseconds)) end
function FREE.PEXPIREAT(key, at) return expire(key, integer(at)) end
function FREE.PERSIST(key)
  local entry = look(key)
  if not (entry and entry.ex) then return 0 end
  entry.ex = nil
  return 1
end

-- Any of them: a server that goes back to older data chooses others.
function FREE.SPOP(key)
  local members = sorted(key)
  if #members == 0 then return false end
  POPPED = POPPED + 1
  local member = members[7 * POPPED % #members + 1]
  remove(key, member)
  return member
end

function FREE.ZREMRANGEBYSCORE(key, lowest, highest)
  local members, scores = sorted(key)
  return remove(key, unpack(by_score(members, scores, lowest, highest)))
end

function FREE.ZREMRANGEBYLEX(key, first, last)
  return remove(key, unpack(by_name(sorted(key), first, last)))
end

local WRITE = {}

function WRITE.HSET(key, ...)
  local entry, new = written(key, 'H'), 0
  for i = 1, select('#', ...), 2 do
    local field, value = text_of((select(i, ...))), text_of((select(i + 1, ...)))
    if WITNESS then WITNESS(key, field, value, entry.h[field]) end
    if entry.h[field] == nil then new = new + 1 end
    entry.h[field] = value
  end
  return new
end

function WRITE.HINCRBY(key, field, by)
  local value = integer(fields_of(key)[field] or 0) + integer(by)
  local entry = written(key, 'H')
  entry.h[field] = text_of(value)
  return value
end

function WRITE.ZADD(key, ...)
  local scores = {}
  for i = 1, select('#', ...), 2 do
    scores[i] = float((select(i, ...)))
  end
  local entry, new = written(key, 'Z'), 0
  for i = 1, select('#', ...), 2 do
    local member = text_of((select(i + 1, ...)))
    if entry.h[member] == nil then new = new + 1 end
    entry.h[member] = scores[i]
  end
  return new
end

function WRITE.SADD(key, ...)
  local entry, new = written(key, 'S'), 0
  for i = 1, select('#', ...) do
    local member = text_of((select(i, ...)))
    if entry.h[member] == nil then new = new + 1 end
    entry.h[member] = 0
  end
  return new
end

local FEWEST = { -- arguments of a command; 0: if none is named
  TIME = 0, INFO = 0, HGET = 2, HMGET = 2, HEXISTS = 2, HSCAN = 2, ZSCAN = 2, ZSCORE = 2, ZLEXCOUNT = 3,
    ZRANGE = 3, HDEL = 2,
  ZREM = 2, PEXPIRE = 2, PEXPIREAT = 2, ZREMRANGEBYSCORE = 3, ZREMRANGEBYLEX = 3, HSET = 3, HINCRBY = 3,
    ZADD = 3, SADD = 2,
  PUBLISH = 2,
}

local function check_arguments(name, ...)
  local count = select('#', ...)
  if count < (FEWEST[name] or 1) then fail_as_wrong('ERR wrong number of arguments for ' .. name) end
  for i = 1, count do
    local argument = select(i, ...)
    if type(argument) == 'boolean' or argument == nil then
      fail_as_wrong('ERR Command arguments must be strings or integers')
    end
  end
end

-- What a real server checks last, as do the commands themselves.
local function check_key(name, ...)
  local is_paired = (name ~= 'HSET' and name ~= 'ZADD') or select('#', ...) % 2 == 1
  if not is_paired then fail_as_wrong('ERR wrong number of arguments for ' .. name) end
  local kind = string.sub(name, 1, 1)
  local entry = TYPES[kind] and look((...))
  if entry and entry.kind ~= kind then
    fail_as_wrong('WRONGTYPE Operation against a key holding the wrong kind of value')
  end
end

COMMANDS = { PUBLISH = true }
for _, commands in ipairs({ READ, FREE, WRITE }) do
  for name in pairs(commands) do
    COMMANDS[name] = true
  end
end

local function call(name, ...)
  check_arguments(name, ...)
  if READ[name] then
    check_key(name, ...)
    return READ[name](...)
  end
  local free, write = FREE[name], WRITE[name]
  if not (free or write or name == 'PUBLISH') then fail_as_wrong('ERR unknown command ' .. name) end
  if is_read_only then fail('ERR Write commands are not allowed from read-only scripts.') end
  if name == 'PUBLISH' then
    local channel, message = ...
    PUBLISH(channel, text_of(message))
    return 1
  end
  if LACKS_REPLICAS then fail('NOREPLICAS Not enough good replicas to write.') end
  if write and ran_full and not has_written then
    fail("OOM command not allowed when used memory > 'maxmemory'.")
  end
  check_key(name, ...)
  has_written = true
  return (free or write)(...)
end

redis = { call = call }

function redis.pcall(...)
  local done, reply = protected(call, ...)
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

-- Packed data stays a table, as no command reads it.
cmsgpack = {
  pack = function(...) return copied({ n = select('#', ...), ... }) end,
  unpack = function(packed) return unpack(copied(packed), 1, packed.n) end,
}

-- Only the scripts write their keys here: an error that they catch is their own bug, and must be seen.
function pcall(run, ...)
  return true, run(...)
end

-- Runs a function as a command or a script; returns its reply, or the text of an error and whether it is a
-- bug.
function RUN(run, reads_only, arguments)
  is_read_only, has_written, ran_full = reads_only, false, IS_FULL
  local done, reply
  if arguments then
    done, reply = protected(run, unpack(arguments))
  else
    done, reply = protected(run)
  end
  if done then return reply, false end
  if type(reply) ~= 'table' then return { err = tostring(reply) }, true end
  return { err = reply.err }, reply.is_bug or false
end

function SNAPSHOT()
  local copy = {}
  for key, entry in pairs(DB) do
    local fields = {}
    for field, value in pairs(entry.h) do
      fields[field] = value
    end
    copy[key] = { kind = entry.kind, h = fields, ex = entry.ex }
  end
  return copy
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

-- Makes a function run as a script, with these data. Returns its reply, the messages that it sends (in no
-- order), and whether an error is a bug.
local function recorded(run, data, publish)
  local messages = {}
  DB = data
  PUBLISH = function(channel, message)
    table.insert(messages, channel .. ' ' .. message)
    publish(channel, message)
  end
  local reply, is_bug = RUN(run, false)
  table.sort(messages)
  return reply, messages, is_bug
end

-- Runs a script, and before it another one on a copy of the data, unseen. Returns the reply, whether an error
-- is a bug, and whether both replied, wrote and sent the same.
function RUN_BOTH(run, other)
  local data, copy, publish, witness = DB, SNAPSHOT(), PUBLISH, WITNESS
  WITNESS = false
  local other_reply, other_messages = recorded(other, copy, function() end)
  WITNESS = witness
  local reply, messages, is_bug = recorded(run, data, publish)
  PUBLISH = publish
  return reply, is_bug, IS_SAME({ reply, data, messages }, { other_reply, copy, other_messages })
end
