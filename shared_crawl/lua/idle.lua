-- Stops the node's work, for lack of requests. If no node works and nothing is queued, the crawl ends.
-- KEYS: see shared/common.lua.
-- ARGV: the finished requests, see `finish_all`; 1 if the crawl is to wait for further requests until an
-- operator ends it. If the node has taken other requests, their reply was lost: they go back to the queues.
-- Reply: "more" if there are requests to take, "wait" if other nodes work or the crawl waits, else "done", or
-- "empty" if the crawl has no page; for "wait", the time after which to ask again (ms), at the end of the
-- first lease; the data of each request set aside now; 1 if the node had no lease; for "done", the numbers of
-- all requests set aside and failed.

@include(shared/common)
@include(shared/joined)

finish_all()
local waits = next_number() == 1
local had_no_lease = stop_working(node, put_back) and 0 or 1
stop_dead_nodes()
offer_requests(false)
if has_requests() and pages_left() > 0 then return { 'more', 0, set_aside, had_no_lease } end
local first_lease_end = redis.call('ZRANGE', working, 0, 0, 'WITHSCORES')[2]
if first_lease_end then
  wait_hungry()
  return { 'wait', math.ceil(first_lease_end - now), set_aside, had_no_lease }
elseif redis.call('EXISTS', claims) == 1 then
  return { 'more', 0, set_aside, had_no_lease } -- start requests that a dead node has begun to queue
elseif waits and pages_left() > 0 and redis.call('HEXISTS', run, 'ending') == 0 then
  wait_hungry()
  return { 'wait', lease_ms, set_aside, had_no_lease }
end
local is_empty = tonumber(redis.call('HGET', run, 'pages') or 0) == 0
  and redis.call('HEXISTS', run, 'ending') == 0
end_run()
if is_empty then redis.call('HSET', run, 'empty', run_id) end
return { is_empty and 'empty' or 'done', 0, set_aside, had_no_lease, redis.call('HLEN', aside),
  redis.call('HLEN', failed) }
