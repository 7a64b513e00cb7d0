-- Shared by `sync`, `evict`, `inspect` and `forget`: how jobs share a scope, equally.
-- While several jobs have open entries, the field "jobs" has the usage of each; `at` is when their use was
-- last counted, and `is_paced` whether starts have been spaced since.
-- The next permit goes to the job that holds the fewest, and among these to the one that has used the least:
-- max-min fairness. Use is the time for which permits are held while others wait (not the number of requests:
-- see Demers, Keshav and Shenker, 1989), so a job that wants less than its share saves nothing up.
-- While starts are spaced, jobs start one after the other.
-- Each update at a scope reads the usage of all its jobs. So with more than MOST_JOBS, nodes share it as
-- without jobs.

local MOST_JOBS = 50

-- A job's usage. A new job begins with the least use of the others.
local function usage_of(scope, name)
  local jobs, used = scope.jobs, math.huge
  for _, usage in ipairs(jobs) do
    if usage.name == name then return usage end
    if usage.held + usage.waiting > 0 then used = math.min(used, usage.used) end
  end
  local usage = {
    name = name, held = 0, waiting = 0,
    used = used < math.huge and used or 0, -- permit-milliseconds, while others waited
    served = scope.tick, -- when it was last granted a permit
  }
  table.insert(jobs, usage)
  return usage
end

-- Adds to what an entry's job holds and waits for.
local function note_job(scope, entry, held, waiting)
  if not scope.jobs then return end
  local usage = usage_of(scope, entry.job)
  usage.held, usage.waiting = usage.held + held, usage.waiting + waiting
  if waiting < 0 and held > 0 then usage.served = scope.tick end
end

-- Counts what jobs have used since the last call. One that does not wait falls no further behind those that
-- do.
local function charge(jobs)
  local elapsed, before, after = jobs.is_paced and 0 or math.max(0, NOW - jobs.at), math.huge, math.huge
  jobs.at = NOW
  for _, usage in ipairs(jobs) do
    if usage.waiting > 0 then
      before = math.min(before, usage.used)
      usage.used = usage.used + usage.held * elapsed
      after = math.min(after, usage.used)
    end
  end
  if after == math.huge then return end
  for _, usage in ipairs(jobs) do
    if usage.waiting == 0 then
      local behind = math.max(0, before - usage.used)
      usage.used = math.max(usage.used + usage.held * elapsed, after - behind)
    end
  end
end

-- Lets nodes share a scope as without jobs. `job`: the only one; true: too many.
local function share_without_jobs(scope, job)
  scope.job, scope.jobs = job, nil
  redis.call('HDEL', scope.key, 'jobs')
end

-- Counts again what each job holds and waits for, or leaves that to a later call. `job`: a newcomer.
local function count_jobs(scope, job)
  if not read_entries(scope) then return end
  local jobs = scope.jobs or { at = NOW }
  scope.job, scope.jobs = false, jobs
  for _, usage in ipairs(jobs) do
    usage.held, usage.waiting = 0, 0
  end
  for_each_entry(scope, function(_, entry)
    if entry.lease_end > NOW and #jobs <= MOST_JOBS then
      job = (job == nil or job == entry.job) and entry.job
      note_job(scope, entry, held_by(entry), waiting_at(entry))
    end
  end)
  if #jobs > MOST_JOBS then return share_without_jobs(scope, true) end
  for i = #jobs, 1, -1 do
    if jobs[i].held + jobs[i].waiting == 0 then table.remove(jobs, i) end
  end
  if job then share_without_jobs(scope, job) end
end

local function read_jobs(scope)
  local text = redis.call('HGET', scope.key, 'jobs')
  if not text then return count_jobs(scope) end
  scope.jobs = cmsgpack.unpack(text)
  if #scope.jobs > MOST_JOBS then return count_jobs(scope) end
  charge(scope.jobs)
end

local function next_job(scope)
  local waiting = {}
  for _, usage in ipairs(scope.jobs) do
    if usage.waiting > 0 then table.insert(waiting, usage) end
  end
  table.sort(waiting, function(one, other)
    if not scope.jobs.is_paced then
      if one.held ~= other.held then return one.held < other.held end -- promise: job with the fewest permits
      if one.used ~= other.used then return one.used < other.used end -- promise: least used job
    end
    return one.served < other.served -- promise: jobs share starts
  end)
  return waiting[1]
end

-- The next job's first member in the queue; nil: the queue does not match the counts.
local function first_of_jobs(scope)
  local AT_ONCE, AS_ONE_ENTRY = 100, 20 -- members read at once; those that cost as much as an entry
  local job = next_job(scope)
  local first, members = 0
  repeat
    members = job and redis.call('ZRANGE', scope.queue, first, first + AT_ONCE - 1) or {}
    looked_at = looked_at + #members / AS_ONE_ENTRY
    for _, member in ipairs(members) do
      if string.match(member, '.*%z(.*)') == job.name then return member end
    end
    first = first + AT_ONCE
  until #members < AT_ONCE
end
