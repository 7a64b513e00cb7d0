-- Puts what was set aside back into the queues. If the crawl has ended, the next node goes on with it.
-- KEYS: see shared/common.lua.
-- ARGV: none of its own.
-- Reply: how many requests were put back.

@include(shared/common)

local count = 0
for _, place in ipairs(redis.call('SMEMBERS', aside)) do
  enqueue(place)
  count = count + 1
end
redis.call('UNLINK', aside)
if count > 0 and ended then
  redis.call('HDEL', run, 'ended')
  for _, key in ipairs({ run, seen, requests }) do
    redis.call('PERSIST', key)
  end
end
notify_idle_nodes()
return { count }
