-- Included by `sync`, after joined.lua: the fingerprints seen by the crawl, in some 10 bytes each.
-- `seen` is a hash. Its field `count` is the number of fingerprints, and `buckets`, if it exists, that of the
-- buckets. Each other field is a bucket: its name is a number, and its value the fingerprints in it, one
-- after the other. There is a bucket for each `PER_BUCKET` fingerprints, or more. In a timed run each
-- fingerprint is followed by the time when it was last queued (s); those that count as new again are dropped
-- when their bucket is written. The number of buckets determines a fingerprint's bucket. A new bucket takes
-- about half of an earlier one's fingerprints (linear hashing: Litwin, 1980), so no call ever moves many.

local LENGTH, TIME_LENGTH, PER_BUCKET = 8, 4, 32
local seen_count, bucket_count, has_times, entry_length -- `see` reads them when it is first called

-- The largest power of two up to this number.
local function power_below(number)
  local _, exponent = math.frexp(number)
  return math.ldexp(1, exponent - 1)
end

local function bucket_of(fingerprint, buckets)
  local power = power_below(buckets)
  local bucket = struct.unpack('>I4', fingerprint) % (2 * power)
  return bucket < buckets and bucket or bucket - power
end

local function fingerprints_in(bucket)
  return redis.call('HGET', seen, bucket) or ''
end

-- Only at a multiple of an entry's length: elsewhere the bytes are the end of one entry and the beginning of
-- another.
local function position_of(fingerprint, fingerprints)
  local at = 0
  repeat
    at = string.find(fingerprints, fingerprint, at + 1, true)
  until not at or at % entry_length == 1
  return at
end

local function entry_of(fingerprint)
  return has_times and fingerprint .. struct.pack('>I4', math.floor(WALL / 1000)) or fingerprint
end

local function add_bucket(new)
  local old = new - power_below(new)
  local stay = {}
  local move = {}
  for fingerprint in string.gmatch(fingerprints_in(old), string.rep('.', entry_length)) do
    table.insert(bucket_of(fingerprint, new + 1) == new and move or stay, fingerprint)
  end
  redis.call('HSET', seen, old, table.concat(stay), new, table.concat(move))
end

-- The bucket without the fingerprints that count as new again, and the number of these: they come first, as
-- entries are in the order of their times. A time as far ahead is a wrong clock's, and would keep all later
-- entries until then.
local function without_old(entries)
  if not has_times or recrawl_after_s == 0 then return entries, 0 end
  local from = 1
  while from < #entries do
    local seen_at = struct.unpack('>I4', entries, from + LENGTH)
    if math.abs(WALL / 1000 - seen_at) <= recrawl_after_s then break end
    from = from + entry_length
  end
  return string.sub(entries, from), (from - 1) / entry_length
end

-- Adds a fingerprint. Returns true if it was not seen before, or long ago. The first write of a call is in
-- joined.lua, and a full server refuses that write or none: so a count never lacks its bucket.
local function see(fingerprint)
  if not seen_count then
    local count, buckets = unpack(redis.call('HMGET', seen, 'count', 'buckets'))
    seen_count = tonumber(count or 0)
    bucket_count = tonumber(buckets or math.floor(seen_count / PER_BUCKET) + 1)
    has_times = is_timed()
    entry_length = LENGTH + (has_times and TIME_LENGTH or 0)
  end
  local bucket = bucket_of(fingerprint, bucket_count)
  local fingerprints, dropped = without_old(fingerprints_in(bucket))
  if position_of(fingerprint, fingerprints) then return false end
  seen_count = seen_count + 1 - dropped
  redis.call('HSET', seen, bucket, fingerprints .. entry_of(fingerprint), 'count', seen_count)
  if seen_count >= PER_BUCKET * bucket_count then
    add_bucket(bucket_count)
    bucket_count = bucket_count + 1
    if has_times then redis.call('HSET', seen, 'buckets', bucket_count) end
  end
  return true
end
