-- Sets and unsets parts of the rule for one name. A rule without parts is removed.
-- KEYS: epoch, rules; history:rules, a sorted set of rule changes, by time.
-- ARGV: the name; a JSON object of the parts to set; the parts to unset.
-- Reply: nothing.

@include(semaphore_middleware.link:shared/wall)

local RULES_KEPT, MOST_CHANGES = 31 * DAY, 1000

local is_read, rule = pcall(cjson.decode, redis.call('HGET', KEYS[2], ARGV[1]) or '{}')
if not is_read or type(rule) ~= 'table' or rule[1] then rule = {} end
for part, value in pairs(cjson.decode(ARGV[2])) do
  rule[part] = value
end
for i = 3, #ARGV do
  rule[ARGV[i]] = nil
end
if next(rule) then
  redis.call('HSET', KEYS[2], ARGV[1], cjson.encode(rule))
else
  redis.call('HDEL', KEYS[2], ARGV[1])
end
redis.call('HSET', KEYS[1], 'rules', redis.call('HLEN', KEYS[2]))

local text = next(rule) and cjson.encode(rule) or ''
redis.call('ZADD', KEYS[3], WALL, string.format('%.0f %s\n%s', WALL, ARGV[1], text))
for _, change in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1 - MOST_CHANGES)) do
  redis.call('ZREM', KEYS[3], change)
end
redis.call('PEXPIRE', KEYS[3], RULES_KEPT)
