-- Puts requests that were set aside or have failed back into the queues. If the crawl has ended, the next node
-- goes on with it.
-- KEYS: see shared/common.lua.
-- ARGV: how many at most.
-- Reply: how many were put back.

@include(shared/common)

local most, count = next_number(), 0
for _, from in ipairs({ aside, failed }) do
  local found = redis.call('HRANDFIELD', from, most - count, 'WITHVALUES')
  for i = 1, #found, 2 do
    redis.call('HSET', requests, found[i], found[i + 1])
    redis.call('HDEL', from, found[i])
    enqueue(found[i])
    count = count + 1
  end
end
if count > 0 and ended then
  redis.call('HDEL', run, 'ended')
  for _, key in ipairs({ run, seen, aside, failed, budgets, stats }) do
    redis.call('PERSIST', key)
  end
end
offer_requests(false)
return { count }
