-- Puts some of the failed requests, or of the dead letters, back into the queues. A text that was not a start
-- request becomes a reservation again: its name has no zero byte, unlike a place. If the crawl has ended, the
-- next node goes on with it.
-- KEYS: see shared/common.lua.
-- ARGV: "aside" or "failed"; a cursor, 0 at first; about how many at once.
-- Reply: how many were put back; the next cursor, 0 at the end. Or "version" with the last run's version, if
-- it differs. Then nothing is changed.

@include(shared/common)

if is_of_other_version() then return { 'version', version_of_run or '' } end
local from = next_argument() == 'aside' and aside or failed
local next_cursor, found = unpack(redis.call('HSCAN', from, next_argument(), 'COUNT', next_argument()))
for i = 1, #found, 2 do
  redis.call('HDEL', from, found[i])
  if string.find(found[i], '%z') then
    redis.call('HSET', requests, found[i], found[i + 1])
    count_unfinished(1)
    enqueue(found[i])
  else
    redis.call('HSET', claims, found[i], found[i + 1])
  end
end
if #found > 0 and ended then
  if redis.call('HGET', run, 'undone') == run_id then redis.call('HDEL', run, 'identity') end
  redis.call('HDEL', run, 'ended', 'undone')
  for _, key in ipairs(kept_after_end) do
    redis.call('PERSIST', key)
  end
end
offer_requests()
return { #found / 2, next_cursor }
