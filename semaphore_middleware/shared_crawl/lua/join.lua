-- Joins the crawl's run, or begins one. The node works from now on.
-- KEYS: see shared/common.lua; then, except in a cluster, the index of all crawls, see `Crawls`.
-- ARGV: the id of a new run; the identity of its nodes (JSON), or nothing from a caller that takes no
-- requests; to begin a run after the end of the last one: 1, or the id of the last one; the name of the run,
-- or nothing for any; the node's budgets, see shared/common.lua.
-- Reply: the id of the run; the number of unfinished requests; the nodes' identity; the id of the run before;
-- the salt of shortened fingerprints; 1 if the run goes on after all its nodes had left it; how many requests
-- an unfinished run before it leaves; how many dead letters and failed requests this call has deleted. Or
-- "ended" with the time since the end (ms), the run's id, its nodes' identity, and the numbers of `missing`;
-- "failed" with the nodes' identity if the last run has no page, but requests that can be retried; "other"
-- with the nodes' identity if the caller's differs; "budgets" with the run's if the caller's differ and other
-- nodes take part; "run" with the name of another run that nodes take part in; or "version" with the version
-- of a run under way. Then only the clock is changed. Or "again": the call should be repeated, as there is
-- much to do.

@include(shared/common)

local SUMMED_AT_ONCE = 500 -- numbers of nodes

-- Adds up the stats of nodes that have gone, some in each call. These nodes have not called for an hour, so
-- they will send no more.
local function sum_stats()
  local cursor = redis.call('HGET', run, 'stats_cursor') or 0
  local next_cursor, found = unpack(redis.call('HSCAN', stats, cursor, 'COUNT', SUMMED_AT_ONCE))
  redis.call('HSET', run, 'stats_cursor', next_cursor)
  for i = 1, #found, 2 do
    local name, stat = string.match(found[i], '^(%Z+)%z(.*)$')
    local is_here = name and (redis.call('ZSCORE', nodes, name) or redis.call('ZSCORE', working, name))
    if name and not is_here and now - (redis.call('HGET', stats, name .. '\0') or 0) > HOUR then
      if stat ~= '' then redis.call('HINCRBY', stats, '\0' .. stat, found[i + 1]) end
      redis.call('HDEL', stats, found[i])
    end
  end
end

local new_run = next_argument()
local identity = next_argument()
local after = next_argument()
local may_begin_again = after == '1' or after == run_id
local name = next_argument()
local node_pages = next_number()
local node_of_site = next_number()
local of_run, name_of_run, last_names = unpack(redis.call('HMGET', run, 'identity', 'name', 'names'))
local MOST_NAMES = 100
local is_another = run_id and name ~= '' and name ~= (name_of_run or '')

-- The crawl's clock stops while no node calls: the wall clock gives the time since then, as in counts.py; or,
-- if it was set back, from now on. Nodes that are stopping are in `working` only.
local function has_living_nodes()
  if WALL < tonumber(wall) then
    write_clock()
    wall = WALL
  end
  local long_ago = '(' .. clock + math.max(0, WALL - wall)
  for _, key in ipairs({ nodes, working }) do
    if #redis.call('ZRANGE', key, long_ago, '+inf', 'BYSCORE', 'LIMIT', 0, 1) > 0 then return true end
  end
  return false
end

-- In `names` a zero byte follows each name, and one precedes the first.
local function has_had(run_name)
  return string.find(last_names or '', '\0' .. run_name .. '\0', 1, true)
end

local function add_name(run_name)
  if has_had(run_name) then return end -- it begins anew, as it has fetched nothing
  local names = (last_names or '\0') .. run_name .. '\0'
  local _, count = string.gsub(names, '%z', '')
  if count > MOST_NAMES + 1 then names = string.sub(names, (string.find(names, '\0', 2, true))) end
  redis.call('HSET', run, 'names', names)
end

-- Call it only while no request is taken: without a budget for sites, neither their pages nor their taken
-- requests were counted. Requests over the old budgets are checked again.
local function change_budgets()
  redis.call('HSET', run, 'most_pages', node_pages, 'most_of_site', node_of_site)
  redis.call('HDEL', run, 'checked', 'check_from')
end

-- Stops all nodes, some in each call. Returns true if none is left. A node with taken requests may have no
-- lease: that may be lost.
local function stop_all_nodes()
  local left = GIVEN_BACK_AT_ONCE
  local member = redis.call('ZRANGE', taken, 0, 0)[1]
  while member and left > 0 do
    left = left - stop_dead_node((read_in_flight(member)))
    member = redis.call('ZRANGE', taken, 0, 0)[1]
  end
  if not member then redis.call('UNLINK', working) end
  return not member
end

-- The key `run` is lost, with the leases' clock and the budgets: all nodes begin anew.
local function forget_nodes()
  redis.call('UNLINK', nodes, takers)
  notify_waiting_nodes()
end

-- A run without a page, or with lost requests, is not done: the next node starts it over; or goes on with the
-- failed requests, as users may have added them.
local is_undone = redis.call('HGET', run, 'undone') == run_id
local dead_letters_now, failed_now, _, lost = missing()
if not ended and is_of_other_version() then
  return { 'version', version_of_run or '' }
elseif is_another and has_had(name) then
  return { 'ended', 0, '', '', 0, 0, 0, 0 }
elseif is_another and not ended and has_living_nodes() then
  return { 'run', name_of_run or '' }
end

may_begin_again = may_begin_again or is_another
if ended and is_undone and not may_begin_again and lost == 0 and dead_letters_now + failed_now > 0 then
  return { 'failed', of_run or '' }
elseif ended and not (may_begin_again or is_undone) then
  return { 'ended', WALL - ended, run_id, of_run or '', missing() }
elseif not (ended or is_another) and of_run and identity ~= '' and of_run ~= identity then
  return { 'other', of_run }
end
local has_other_budgets = identity ~= '' and (node_pages ~= most_pages or node_of_site ~= most_of_site)
local has_nodes = run_id and not ended and has_living_nodes()
if of_run and has_other_budgets and has_nodes then
  return { 'budgets', most_pages, most_of_site }
end
write_clock() -- before all other writes: a full server refuses this one, and then nothing is written
if not run_id then forget_nodes() end
local goes_on = run_id and not (ended or is_another)
if (not run_id or goes_on and has_other_budgets) and not stop_all_nodes() then return { 'again' } end
local left, forgotten = 0, 0
if is_another and not ended then
  left = redis.call('HLEN', requests) + redis.call('HLEN', claims)
  end_run()
  ended = true
end
if not goes_on then
  if ended and not is_of_other_version() and recrawl_after_s > 0 and is_timed() then
    redis.call('PERSIST', seen)
  else
    redis.call('UNLINK', seen)
    redis.call('HSET', run, 'salt', new_run, 'timed', recrawl_after_s > 0 and 1 or 0)
  end
  local _, _, _, previous_lost = missing()
  redis.call('HSET', run, 'id', new_run, 'version', version, 'previous', run_id or '',
    'previous_lost', previous_lost, 'unfinished', redis.call('HLEN', requests))
  run_id, of_run = new_run, nil
  -- promise: pages of a second run
  redis.call('HDEL', run, 'ended', 'identity', 'pages', 'lost', 'name', 'dropped')
  if name ~= '' then
    redis.call('HSET', run, 'name', name)
    add_name(name)
  end
  redis.call('PERSIST', run)
  forgotten = redis.call('HLEN', aside) + redis.call('HLEN', failed)
  redis.call('UNLINK', aside, failed, budgets, stats)
end
if identity ~= '' then
  of_run = identity
  redis.call('HSET', run, 'identity', identity)
  if has_other_budgets then change_budgets() end
end
renew_presence()
renew_lease()
local index = KEYS[#KEYS]
if index ~= stats and redis.call('EXISTS', index) == 1 then redis.call('ZADD', index, 0, run) end
local previous, salt = unpack(redis.call('HMGET', run, 'previous', 'salt'))
local was_stopped = goes_on and not has_nodes
sum_stats()
return {
  run_id, redis.call('HLEN', requests), of_run or '', previous, salt, was_stopped and 1 or 0, left, forgotten
}
