-- Stops the node's work, for lack of requests. If no node works and no unfinished request is left, or only
-- requests over the budgets, the crawl ends.
-- KEYS: see shared/common.lua.
-- ARGV: the finished requests, see `finish_all`; how long the crawl waits for further requests unless an
-- operator ends it (ms). If the node has taken other requests, the reply with them was lost: they go back to
-- the queues.
-- Reply: "more" if there are requests to take; "starts" if there are only reservations; "wait" if other nodes
-- work or the crawl waits; otherwise "done", or "undone" if the crawl has no page or lost requests. Then for
-- "wait", the time after which to ask again (ms), at the end of the first lease; the data of each new dead
-- letter; 1 if the node had no lease; how many requests are queued again; for "done" and "undone", the
-- numbers of `missing`; for "wait", if other nodes work: how many, one of them, and how many requests it has
-- taken.

@include(shared/common)
@include(shared/joined)

local CHECKED_AT_ONCE = 500 -- requests, or sites

local queued_again = 0

-- Keys may be evicted or deleted: then unfinished requests are in no queue, or their sites not in the order.
-- Each call looks for some of them, but only while no node works, as no request is taken then.

-- A node with taken requests has a lease, unless it was lost.
local function renew_lost_lease()
  local member = redis.call('ZRANGE', taken, 0, 0)[1]
  if member and redis.call('EXISTS', working) == 0 then
    local name = read_in_flight(member)
    redis.call('ZADD', working, now + lease_ms, name)
  end
end

-- True if a poison request may be taken now, or there may be more to check. As no request is taken, none uses
-- a budget.
local function check_poison()
  for _, place in ipairs(redis.call('ZRANGE', suspects, 0, POISON_CHECKED - 1)) do
    forget_in_flight(site_of(place))
  end
  local before = redis.call('ZCARD', suspects)
  return has_requests() or redis.call('ZCARD', suspects) < before
end

-- True if there may be more to queue again.
local function queue_again()
  local queued = redis.call('ZCARD', queue) + redis.call('ZCARD', suspects)
  if redis.call('HLEN', requests) <= queued then return false end
  local cursor = redis.call('HGET', run, 'cursor') or 0
  local next_cursor, found = unpack(redis.call('HSCAN', requests, cursor, 'COUNT', CHECKED_AT_ONCE))
  redis.call('HSET', run, 'cursor', next_cursor)
  for i = 1, #found, 2 do
    local place = found[i]
    if not (redis.call('ZSCORE', queue, place) or redis.call('ZSCORE', suspects, place)) then
      enqueue(place)
      queued_again = queued_again + 1
    end
  end
  return true
end

-- True if sites may be in the order, or there may be more to check. Requests over the budgets are checked
-- once.
local function put_sites_back()
  local queued = redis.call('ZCARD', queue)
  local checked, from = unpack(redis.call('HMGET', run, 'checked', 'check_from'))
  if queued == tonumber(checked or 0) then return false end
  from = from or '-'
  for _ = 1, CHECKED_AT_ONCE do
    local place = redis.call('ZRANGE', queue, from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    if not place then
      redis.call('HDEL', run, 'check_from')
      local has_sites = redis.call('EXISTS', sites) == 1
      if not has_sites then redis.call('HSET', run, 'checked', queued) end
      return has_sites
    end
    local site = site_of(place)
    forget_in_flight(site)
    put_last(site)
    if redis.call('ZSCORE', sites, site) then
      queued_again = queued_again + redis.call('ZLEXCOUNT', queue, bounds_of(site))
    end
    from = '(' .. site .. '\1'
  end
  redis.call('HSET', run, 'check_from', from)
  return true
end

finish_all()
local most_wait = next_number()
local had_no_lease = stop_working(node, put_back) and 0 or 1
stop_dead_nodes()
offer_requests()

-- The rest of the wait for further requests. The wait begins when no node has any, and ends when a node takes
-- some.
local function wait_left_ms()
  if most_wait == 0 or pages_left() <= 0 or redis.call('HEXISTS', run, 'ending') == 1 then return 0 end
  local idle_since = redis.call('HGET', run, 'idle_since')
  if not idle_since then redis.call('HSET', run, 'idle_since', now) end
  return most_wait - (now - (idle_since or now))
end

-- How many nodes work, one of them, and how many requests it has taken: a node with some, if there is one.
local function nodes_at_work()
  local member = redis.call('ZRANGE', taken, 0, 0)[1]
  local name = member and read_in_flight(member) or redis.call('ZRANGE', working, 0, 0)[1]
  return redis.call('ZCARD', working), name, redis.call('ZLEXCOUNT', taken, bounds_of(name))
end

local function answer(next_step, wait_ms, ...)
  return { next_step, wait_ms, dead_letters, had_no_lease, queued_again, ... }
end

if has_requests() and pages_left() > 0 then return answer('more', 0) end
renew_lost_lease()
local first_lease_end = redis.call('ZRANGE', working, 0, 0, 'WITHSCORES')[2]
if first_lease_end then
  wait_for_requests()
  return answer('wait', math.ceil(first_lease_end - now), nodes_at_work())
elseif redis.call('EXISTS', claims) == 1 then
  return answer('starts', 0)
elseif pages_left() > 0 and (check_poison() or queue_again() or put_sites_back()) then
  offer_requests()
  return answer('more', 0)
end
local wait_left = wait_left_ms()
if wait_left > 0 then
  wait_for_requests()
  return answer('wait', math.ceil(math.min(lease_ms, wait_left)))
end
local is_empty = tonumber(redis.call('HGET', run, 'pages') or 0) == 0
  and redis.call('HEXISTS', run, 'ending') == 0
end_run()
local _, _, _, lost = missing()
local is_undone = is_empty or lost > 0
if is_undone then redis.call('HSET', run, 'undone', run_id) end
return answer(is_undone and 'undone' or 'done', 0, missing())
