-- Take the next request. The node counts as working until it rests: it may produce more.
-- ARGV: lease of that mark (ms); ids that the node has finished.
-- Reply: id and request, or nil.
local lease_ms, first_done = tonumber(ARGV[4]), 5

finish(first_done)
stop_the_dead()
local id = redis.call("ZPOPMIN", queue)[1]
if not id then
  return false
end
work_for(lease_ms)
redis.call("SADD", hand_of(node), id)
return {id, redis.call("HGET", requests, id)}
