-- Joins the crawl's run, or begins one. The node works from now on.
-- KEYS: see shared/common.lua.
-- ARGV: the id of a new run; what its nodes have in common (JSON), or nothing from one that only looks on; 1
-- if the run is to begin though the last one has ended.
-- Reply: the id of the run; how many requests are not finished; what its nodes have in common; the id of the
-- run before; with what fingerprints are to be shortened. Or "ended" with the time since then (ms), the run's
-- id and what its nodes had in common, or "other" with what the run's nodes have in common if the caller's is
-- not the same; then nothing is changed.

@include(shared/common)

local new_run, identity, may_begin_again = next_argument(), next_argument(), next_number() == 1
local of_run = redis.call('HGET', run, 'identity')

-- A run that has fetched nothing has not done what it was for: the next node begins it anew.
may_begin_again = may_begin_again or redis.call('HGET', run, 'empty') == run_id
if ended and not may_begin_again then
  return { 'ended', WALL - ended, run_id, of_run or '' }
elseif not ended and of_run and identity ~= '' and of_run ~= identity then
  return { 'other', of_run }
end
write_clock() -- first of all writes: a full server refuses it, and so the rest
if ended or not run_id then
  if ended and recrawl_after_s > 0 and is_timed() then
    redis.call('PERSIST', seen)
  else
    redis.call('UNLINK', seen)
    redis.call('HSET', run, 'salt', new_run, 'timed', recrawl_after_s > 0 and 1 or 0)
  end
  redis.call('HSET', run, 'id', new_run, 'previous', run_id or '')
  run_id, of_run = new_run, nil
  redis.call('HDEL', run, 'ended', 'identity', 'pages')
  redis.call('PERSIST', run)
  redis.call('UNLINK', aside, failed, budgets, stats)
end
if identity ~= '' then
  of_run = identity
  redis.call('HSET', run, 'identity', identity)
end
renew_presence()
renew_lease()
local previous, salt = unpack(redis.call('HMGET', run, 'previous', 'salt'))
return { run_id, redis.call('HLEN', requests), of_run or '', previous, salt }
