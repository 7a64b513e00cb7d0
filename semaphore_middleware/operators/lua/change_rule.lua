-- Sets and unsets parts of the rule for one name, whose `by` is who has set one last. A rule without parts
-- is removed.
-- KEYS: epoch, rules; rules:log, a sorted set of rule changes, by time.
-- ARGV: the name; who changes it; a JSON object of the parts to set; the parts to unset.
-- Reply: nothing.

@include(semaphore_middleware.link:shared/wall)

local RULES_KEPT, MOST_CHANGES = 31 * DAY, 1000
local BY = ARGV[2]

local is_read, rule = pcall(cjson.decode, redis.call('HGET', KEYS[2], ARGV[1]) or '{}')
if not is_read or type(rule) ~= 'table' or rule[1] then rule = {} end
for part, value in pairs(cjson.decode(ARGV[3])) do
  rule[part], rule.by = value, BY
end
for i = 4, #ARGV do
  rule[ARGV[i]] = nil
end
local set_by = rule.by
rule.by = nil
if next(rule) then
  rule.by = set_by
  redis.call('HSET', KEYS[2], ARGV[1], cjson.encode(rule))
else
  redis.call('HDEL', KEYS[2], ARGV[1])
end
redis.call('HSET', KEYS[1], 'rules', redis.call('HLEN', KEYS[2]))

rule.by = BY -- in the log also of what is taken back
local _, newest = unpack(redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES'))
local at = math.max(WALL, (newest or 0) + 1) -- those of one millisecond stay in their order
redis.call('ZADD', KEYS[3], at, string.format('%.0f %s\n%s', at, ARGV[1], cjson.encode(rule)))
for _, change in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1 - MOST_CHANGES)) do
  redis.call('ZREM', KEYS[3], change)
end
redis.call('PEXPIRE', KEYS[3], RULES_KEPT)
