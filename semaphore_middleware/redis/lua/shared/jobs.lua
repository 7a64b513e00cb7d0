-- Shared by `sync`, `evict`, `inspect` and `forget`: how jobs share a scope.
-- While several jobs have open accounts, the field "jobs" has an entry of each; `at` is when their use was
-- last counted, and `pace` the time between two starts (ms), 0 if they are not spaced.
-- A job's share of the places is its weight's part among the jobs that wait; its quota is that rounded down.
-- The next permit goes to a job below its quota, else to one below its share, and among these to the one that
-- has used the least by weight: weighted max-min fairness. A place is used for the time that it is held (not
-- by requests: Demers, Keshav and Shenker, 1989, say why). Where starts are spaced, starts are used.
-- Use is counted only while others wait: a job that wants less than its share saves nothing up.
-- KEYS[1] also has, in the field "share:" and a job's name, the weight that an operator has set.

local function read_weights(jobs)
  if not jobs[1] then return end -- all that the accounts have is requests whose nodes pause
  local names = {}
  for i, entry in ipairs(jobs) do
    names[i] = 'share:' .. entry.name
  end
  for i, weight in ipairs(redis.call('HMGET', KEYS[1], unpack(names))) do
    -- promise: operator's weight
    jobs[i].force = tonumber(weight) or (jobs[i].weight > 0 and jobs[i].weight or 1)
  end
end

-- A job's entry. A new one begins with the least use of the others.
local function entry_of(scope, name)
  local jobs, used = scope.jobs, math.huge
  for _, entry in ipairs(jobs) do
    if entry.name == name then return entry end
    if entry.held + entry.waiting > 0 then used = math.min(used, entry.used) end
  end
  local entry = {
    name = name,
    weight = 0, force = 1, -- as its nodes say (0: they say none, which is as 1); and as it counts
    held = 0, waiting = 0,
    -- Place-milliseconds, or starts by their pace, by weight, while others waited.
    used = used < math.huge and used or 0,
    served = scope.tick, -- when it was last granted a permit
  }
  table.insert(jobs, entry)
  return entry
end

-- Adds to what an account's job holds and waits for.
local function note_job(scope, account, held, waiting)
  if not scope.jobs then return end
  local entry = entry_of(scope, account.job)
  entry.held, entry.waiting = entry.held + held, entry.waiting + waiting
  if waiting < 0 and held > 0 then entry.served = scope.tick end
  entry.weight = math.max(entry.weight, tonumber(account.weight)) -- where nodes differ, the largest counts
end

-- Counts what jobs have used since the last call, and a number of starts of one account.
local function charge(scope, account, starts)
  local jobs, before, after = scope.jobs, math.huge, math.huge
  local elapsed = jobs.pace == 0 and math.max(0, NOW - jobs.at) or 0
  jobs.at = NOW
  local starting = starts > 0 and entry_of(scope, account.job)
  local function use(entry)
    local began = entry == starting and starts * jobs.pace or 0 -- promise: jobs share starts
    entry.used = entry.used + (entry.held * elapsed + began) / entry.force
  end
  for _, entry in ipairs(jobs) do
    if entry.waiting > 0 then
      before = math.min(before, entry.used)
      use(entry)
      after = math.min(after, entry.used)
    end
  end
  if after == math.huge then return end
  for _, entry in ipairs(jobs) do
    if entry.waiting == 0 then
      local behind = math.max(0, before - entry.used)
      use(entry)
      entry.used = math.max(entry.used, after - behind)
    end
  end
end

-- Counts anew what each job holds and waits for. `job`: one that has come. If there are not several, nodes
-- share the scope.
local function count_jobs(scope, job)
  local jobs = scope.jobs or { at = NOW, pace = 0 }
  scope.job, scope.jobs = false, jobs
  for _, entry in ipairs(jobs) do
    entry.held, entry.waiting, entry.weight = 0, 0, 0
  end
  for_each_account(scope, function(_, account)
    if account.lease_end > NOW then
      job = (job == nil or job == account.job) and account.job
      note_job(scope, account, held_by(account), waiting_at(account))
    end
  end)
  for i = #jobs, 1, -1 do
    if jobs[i].held + jobs[i].waiting == 0 then table.remove(jobs, i) end
  end
  if job then
    scope.job, scope.jobs = job, nil
    redis.call('HDEL', scope.key, 'jobs')
  else
    read_weights(jobs)
  end
end

local function read_jobs(scope)
  local text = redis.call('HGET', scope.key, 'jobs')
  if not text then return count_jobs(scope) end
  scope.jobs = cmsgpack.unpack(text)
  read_weights(scope.jobs)
  charge(scope, nil, 0)
end

-- The job whose turn it is, if jobs share so many places.
local function next_job(scope, places)
  local weights, waiting = 0, {}
  for _, entry in ipairs(scope.jobs) do
    if entry.waiting > 0 then
      table.insert(waiting, entry)
      weights = weights + entry.force
    else
      places = places - entry.held
    end
  end
  for _, entry in ipairs(waiting) do
    local due = places * entry.force / weights - entry.held
    entry.rank = (scope.jobs.pace > 0 or due >= 1) and 0 or due > 0 and 1 or 2
  end
  table.sort(waiting, function(one, other)
    if one.rank ~= other.rank then return one.rank < other.rank end
    if one.used ~= other.used then return one.used < other.used end -- promise: least used job
    return one.served < other.served
  end)
  return waiting[1]
end

-- The first node in the queue of the job whose turn it is; nil: the queue is not what was counted.
local function first_of_jobs(scope, free)
  local job = next_job(scope, scope.held + free)
  for _, member in ipairs(job and redis.call('ZRANGE', scope.queue, 0, -1) or {}) do
    if string.match(member, '.*%z(.*)') == job.name then return member end
  end
end
