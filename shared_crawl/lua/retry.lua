-- Puts some of the failed requests, or of those set aside, back into the queues. If the crawl has ended, the
-- next node goes on with it.
-- KEYS: see shared/common.lua.
-- ARGV: "aside" or "failed"; where to go on, 0 at first; about how many at once.
-- Reply: how many were put back; where to go on, 0 at the end.

@include(shared/common)

local from = next_argument() == 'aside' and aside or failed
local next_cursor, found = unpack(redis.call('HSCAN', from, next_argument(), 'COUNT', next_argument()))
for i = 1, #found, 2 do
  redis.call('HSET', requests, found[i], found[i + 1])
  redis.call('HDEL', from, found[i])
  enqueue(found[i])
end
count_unfinished(#found / 2)
if #found > 0 and ended then
  redis.call('HDEL', run, 'ended', 'undone')
  for _, key in ipairs(kept_after_end) do
    redis.call('PERSIST', key)
  end
end
offer_requests(false)
return { #found / 2, next_cursor }
