-- Sets and unsets parts of the rule for one name. A rule without parts is removed.
-- KEYS: epoch, rules. ARGV: the name; a JSON object of the parts to set; the parts to unset.
-- Reply: nothing.

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
