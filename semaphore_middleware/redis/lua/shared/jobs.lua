-- Shared by `sync`, `evict`, `inspect` and `forget`: how jobs share a scope.
-- While several jobs have open accounts, the field "jobs" has an entry of each job and each group; `at` is
-- when their use was last counted, and `pace` the time between two starts (ms), 0 if they are not spaced.
-- Groups share the scope first: that of "news/fr" and "news" is "news/".
-- A job's share of the places is its weight's part among the jobs that wait; its quota is that rounded down.
-- The next permit goes to a job below its quota, else to one below its share, and among these to the one that
-- has used the least by weight: weighted max-min fairness. A place is used for the time that it is held (not
-- by requests: Demers, Keshav and Shenker, 1989, say why). Where starts are spaced, starts are used.
-- Use is counted only while others wait: a job that wants less than its share saves nothing up.
-- KEYS[1] also has, in the field "share:" and a name, the weight that an operator has set.

local function read_weights(jobs)
  local names = {}
  for i, entry in ipairs(jobs) do
    names[i] = 'share:' .. entry.name
  end
  for i, weight in ipairs(redis.call('HMGET', KEYS[1], unpack(names))) do
    jobs[i].force = tonumber(weight) or (jobs[i].weight > 0 and jobs[i].weight or 1)
  end
end

-- The entry of a job or a group. A new one begins with the least use of the others.
local function entry_of(scope, name, group)
  local jobs, used = scope.jobs, math.huge
  for _, entry in ipairs(jobs) do
    if entry.name == name then return entry end
    if entry.group == group and entry.held + entry.waiting > 0 then used = math.min(used, entry.used) end
  end
  local entry = {
    name = name, group = group, -- a group ends with a slash, and is in none: ''
    weight = 0, force = 1, -- as its nodes say (0: they say none, which is as 1); and as it counts
    held = 0, waiting = 0,
    -- Place-milliseconds, or starts by their pace, by weight, while others waited.
    used = used < math.huge and used or 0,
    served = scope.tick, -- when it was last granted a permit
  }
  table.insert(jobs, entry)
  return entry
end

-- The entries of an account: its group's, and its job's.
local function entries_of(scope, account)
  local group = string.match(account.job, '^[^/]*') .. '/'
  return { entry_of(scope, group, ''), entry_of(scope, account.job, group) }
end

-- Adds to what an account's job and its group hold and wait for.
local function note_job(scope, account, held, waiting)
  if not scope.jobs then return end
  local entries = entries_of(scope, account)
  for _, entry in ipairs(entries) do
    entry.held, entry.waiting = entry.held + held, entry.waiting + waiting
    if waiting < 0 and held > 0 then entry.served = scope.tick end
  end
  -- A job without a slash gives its weight to its group, and counts as 1 in it. Where nodes differ, the
  -- largest weight counts.
  local own = entries[string.find(account.job, '/', 1, true) and 2 or 1]
  own.weight = math.max(own.weight, tonumber(account.weight))
end

-- Counts what jobs have used since the last call, and a number of starts of one account.
local function charge(scope, account, starts)
  local jobs, before, after = scope.jobs, {}, {}
  local elapsed = jobs.pace == 0 and math.max(0, NOW - jobs.at) or 0
  jobs.at = NOW
  local starting = starts > 0 and entries_of(scope, account) or {}
  local function use(entry)
    local began = (entry == starting[1] or entry == starting[2]) and starts * jobs.pace or 0
    entry.used = entry.used + (entry.held * elapsed + began) / entry.force
  end
  for _, entry in ipairs(jobs) do
    if entry.waiting > 0 then
      local group = entry.group
      before[group] = math.min(before[group] or math.huge, entry.used)
      use(entry)
      after[group] = math.min(after[group] or math.huge, entry.used)
    end
  end
  for _, entry in ipairs(jobs) do
    local least = after[entry.group]
    if entry.waiting == 0 and least then
      local behind = math.max(0, before[entry.group] - entry.used)
      use(entry)
      entry.used = math.max(entry.used, least - behind)
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
  elseif jobs[1] then
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

-- The job of a group (or the group of all: '') whose turn it is, if they share so many places.
local function next_in(scope, group, places)
  local weights, waiting = 0, {}
  for _, entry in ipairs(scope.jobs) do
    if entry.group == group and entry.waiting > 0 then
      table.insert(waiting, entry)
      weights = weights + entry.force
    elseif entry.group == group then
      places = places - entry.held
    end
  end
  for _, entry in ipairs(waiting) do
    local due = places * entry.force / weights - entry.held
    entry.rank = (scope.jobs.pace > 0 or due >= 1) and 0 or due > 0 and 1 or 2
  end
  table.sort(waiting, function(one, other)
    if one.rank ~= other.rank then return one.rank < other.rank end
    if one.used ~= other.used then return one.used < other.used end
    return one.served < other.served
  end)
  return waiting[1]
end

-- The first node in the queue of the job whose turn it is; nil: the queue is not what was counted.
local function first_of_jobs(scope, free)
  local group = next_in(scope, '', scope.held + free)
  local job = group and next_in(scope, group.name, group.held + 1)
  for _, member in ipairs(job and redis.call('ZRANGE', scope.queue, 0, -1) or {}) do
    if string.match(member, '.*%z(.*)') == job.name then return member end
  end
end
