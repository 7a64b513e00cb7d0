-- Join the crawl's run, or begin one. The node works from now on.
-- KEYS: see shared/common.lua.
-- ARGV: the id of a new run.
-- Reply: the id of the run; how many requests are not finished.
local new_run = next_argument()
if not run_id or ended then
  redis.call("HSET", run, "id", new_run)
  if ended then
    redis.call("HSET", run, "previous", run_id)
    redis.call("HDEL", run, "ended")
    redis.call("PERSIST", run)
  end
  run_id = new_run
end
write_clock()
renew_presence()
renew_lease()
return { run_id, redis.call("HLEN", requests) }
