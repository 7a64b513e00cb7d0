-- Shared by `sync`, `evict`, `inspect` and `forget`: how jobs share a scope.
-- Only while accounts of several are open there is the field "jobs", with the record `share` of each job, and
-- of each group, "news/" of "news/fr" and "news": the part of a name before the slash is shared first.
-- The share of a job is in proportion to its weight among those that wait, its quota the share rounded down.
-- The next permit goes to a job below its quota, else to one below its share, and among these to the one that
-- has used the least by weight: weighted max-min fairness of the places, each for the time that it is held
-- (Demers, Keshav and Shenker, 1989, say why not of requests). Where starts are spaced, these are used.
-- Use is counted while others wait, and who wants less than its share saves nothing up.
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

-- Its entry, which is new if the job has just come: then it has used as much as the others have at least.
local function entry_of(scope, name, group)
  local jobs, used = scope.jobs, math.huge
  for _, entry in ipairs(jobs) do
    if entry.name == name then return entry end
    if entry.group == group and entry.held + entry.waiting > 0 then used = math.min(used, entry.used) end
  end
  local entry = {
    name = name, group = group, weight = 0, force = 1, held = 0, waiting = 0,
    used = used < math.huge and used or 0, served = scope.tick,
  }
  table.insert(jobs, entry)
  return entry
end

-- The entries of an account: its group's, and its job's.
local function entries_of(scope, account)
  local group = string.match(account.job, '^[^/]*') .. '/'
  return { entry_of(scope, group, ''), entry_of(scope, account.job, group) }
end

-- An account holds and waits for so many more.
local function note_job(scope, account, held, waiting)
  if not scope.jobs then return end
  local entries = entries_of(scope, account)
  for _, entry in ipairs(entries) do
    entry.held, entry.waiting = entry.held + held, entry.waiting + waiting
    if waiting < 0 and held > 0 then entry.served = scope.tick end
  end
  -- Within a group, the job that has its name counts as 1. Where nodes differ, the largest weight counts.
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

-- Counts anew what each job holds and waits for. `job`: one that is there in any case. If it is the only one,
-- or there is no other, nodes share the scope.
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
  local jobs = cmsgpack.unpack(text)
  for i, row in ipairs(jobs.rows) do
    local entry = {}
    @entry.(share) = unpack(row)
    jobs[i] = entry
  end
  scope.jobs = jobs
  read_weights(jobs)
  charge(scope, nil, 0)
end

local function pack_jobs(scope)
  local jobs, rows = scope.jobs, {}
  for i, entry in ipairs(jobs) do
    rows[i] = { @entry.(share) }
  end
  return cmsgpack.pack({ at = jobs.at, pace = jobs.pace, rows = rows })
end

-- Whose turn it is of those in a group that share so many places.
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

-- The member of the queue that is first of the job whose turn it is; nil: the queue is not what was counted.
local function first_of_jobs(scope, free)
  local group = next_in(scope, '', scope.held + free)
  local job = group and next_in(scope, group.name, group.held + 1)
  for _, member in ipairs(job and redis.call('ZRANGE', scope.queue, 0, -1) or {}) do
    if string.match(member, '.*%z(.*)') == job.name then return member end
  end
end
