-- Reads a scope and changes nothing.
-- KEYS: held, line, waiting, state, epoch, rules. ARGV: the clock's longest step (ms).
-- Reply: the limit in force (0: idle, and no operator has set one); the most that it may grow to, if
--        it is adaptive; the delay (ms); time until the next start, and until the backoff ends (ms); the
--        last backoff that the site did not set itself (ms); 1 if paused; which operator has set a rule
--        (empty: none); grants since the scope was idle; holders; waiters in the order of the queue.
--        Each holder and waiter is: id, age (ms, since its grant or since it asked), lease left (ms).

local wall, clock = unpack(redis.call('HMGET', KEYS[5], 'wall', 'clock'))
local now = clock and bucket_clock(wall, clock, tonumber(ARGV[1])) or WALL

local function member(id, lease_end)
  local since = tonumber(redis.call('HGET', KEYS[4], 'since:' .. id)) or now
  return { id, math.max(0, now - since), math.floor(lease_end - now) }
end

local holders, waiters = {}, {}
local held = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #held, 2 do
  local lease_end = tonumber(held[i + 1])
  if lease_end > now then table.insert(holders, member(held[i], lease_end)) end
end
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local lease_end = tonumber(redis.call('ZSCORE', KEYS[3], id)) or now
  if lease_end > now then table.insert(waiters, member(id, lease_end)) end
end

local limit, delay, jitter, adaptive, after, text, idle, grants = unpack(redis.call('HMGET',
  KEYS[4], 'limit', 'delay', 'jitter', 'adaptive', 'next', 'learnt', 'idle', 'grants'))
local rule, site = rule_of(KEYS[1], KEYS[6]), read_learnt(text)
local force = in_force(rule, tonumber(limit) or 0, tonumber(delay) or 0, jitter, adaptive)
if force.adaptive and site.working > 0 then
  force.limit = math.min(force.most, math.floor(site.working))
end
local since = idle and WALL - idle or now
local function left(time)
  return math.max(0, math.ceil((tonumber(time) or 0) - since))
end
return {
  force.limit, force.most, math.ceil(force.delay), left(after), left(site.quiet),
  math.ceil(site.backoff), force.paused and 1 or 0, rule.by or '', tonumber(grants) or 0, holders, waiters,
}
