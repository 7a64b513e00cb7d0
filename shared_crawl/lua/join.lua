-- Joins the crawl's run, or begins one. The node works from now on.
-- KEYS: see shared/common.lua.
-- ARGV: the version of keys and scripts; the id of a new run; the identity of its nodes (JSON), or nothing
-- from a caller that takes no requests; 1 if the run is to begin though the last one has ended; the node's
-- budgets, see shared/common.lua.
-- Reply: the id of the run; the number of unfinished requests; the nodes' identity; the id of the run before;
-- the salt of shortened fingerprints. Or "ended" with the time since then (ms), the run's id, its nodes'
-- identity, and what is `missing`; "failed" with the nodes' identity if the last run has no page, and has
-- requests to be tried again; "other" with the nodes' identity if the caller's is not the same; "budgets"
-- with those of the run if the caller's are not the same, and other nodes take part; or "version" with that
-- of a run under way. Then nothing is changed.

@include(shared/common)

local SUMMED_AT_ONCE = 500 -- numbers of nodes

-- Adds up the numbers of nodes that have gone, some in each call. None of them has called for an hour, so it
-- sends them no more.
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

local version = next_argument()
local new_run = next_argument()
local identity = next_argument()
local may_begin_again = next_number() == 1
local node_pages = next_number()
local node_of_site = next_number()
local of_run, version_of_run = unpack(redis.call('HMGET', run, 'identity', 'version'))

-- The crawl's clock stands still while no node calls: the wall clock tells the time since, as in counts.py.
local function has_living_nodes()
  local long_ago = '(' .. clock + math.max(0, WALL - wall)
  return #redis.call('ZRANGE', nodes, long_ago, '+inf', 'BYSCORE', 'LIMIT', 0, 1) > 0
end

-- Without a budget for sites, a site's pages are not counted, nor its taken requests: so none may be taken
-- now. What was over the budgets is looked at again.
local function change_budgets()
  for _, name in ipairs(redis.call('ZRANGE', working, 0, -1)) do
    stop_working(name, suspect)
  end
  if math.min(most_of_site, node_of_site) == 0 then redis.call('UNLINK', budgets) end
  redis.call('HSET', run, 'most_pages', node_pages, 'most_of_site', node_of_site)
  redis.call('HDEL', run, 'checked', 'check_from')
end

-- A run without a page, or with lost requests, is not done: the next node begins it anew; or it goes on with
-- what has failed, as users may have fed it.
local is_undone = redis.call('HGET', run, 'undone') == run_id
local set_aside_now, failed_now, _, lost = missing()
if run_id and not ended and version_of_run ~= version then
  return { 'version', version_of_run or '' }
elseif ended and is_undone and not may_begin_again and lost == 0 and set_aside_now + failed_now > 0 then
  return { 'failed', of_run or '' }
elseif ended and not (may_begin_again or is_undone) then
  return { 'ended', WALL - ended, run_id, of_run or '', missing() }
elseif not ended and of_run and identity ~= '' and of_run ~= identity then
  return { 'other', of_run }
end
local has_other_budgets = identity ~= '' and (node_pages ~= most_pages or node_of_site ~= most_of_site)
if not ended and of_run and has_other_budgets and has_living_nodes() then
  return { 'budgets', most_pages, most_of_site }
end
write_clock() -- first of all writes: a full server refuses it, and so the rest
if ended or not run_id then
  if ended and version_of_run == version and recrawl_after_s > 0 and is_timed() then
    redis.call('PERSIST', seen)
  else
    redis.call('UNLINK', seen)
    redis.call('HSET', run, 'salt', new_run, 'timed', recrawl_after_s > 0 and 1 or 0)
  end
  redis.call('HSET', run, 'id', new_run, 'version', version, 'previous', run_id or '',
    'unfinished', redis.call('HLEN', requests))
  run_id, of_run = new_run, nil
  redis.call('HDEL', run, 'ended', 'identity', 'pages', 'lost')
  redis.call('PERSIST', run)
  redis.call('UNLINK', aside, failed, budgets, stats)
end
if identity ~= '' then
  of_run = identity
  redis.call('HSET', run, 'identity', identity)
  if has_other_budgets then change_budgets() end
end
renew_presence()
renew_lease()
sum_stats()
local previous, salt = unpack(redis.call('HMGET', run, 'previous', 'salt'))
return { run_id, redis.call('HLEN', requests), of_run or '', previous, salt }
