-- Put in front of every verb: how a scope is read and written back.
-- Keys, arguments and reply: see the prelude.
-- Besides FIELDS the state key has, for each node in the queue, "last:<node>" (its last place) and
-- "waiters:<node>" (how many it has there), and for each permit "since:<id>" (when it was granted or
-- asked for).

local FIELDS = {
  'limit', 'delay', 'jitter', 'adaptive', -- what the nodes agree on
  'next', -- when the next start may be
  'ruled', -- 1 if that is from an operator's delay
  'virtual', 'joined', -- the queue's virtual time, and its tie-breaker
  'grants', -- permits granted since the scope was idle
  'due', -- no lease ends before this
  'expires', -- when the keys expire
  'told', -- the first waiter, if it was told when to ask again
  'learnt', -- what the site's answers have taught (see `site`)
  'idle', -- since when it is idle, by the wall clock; `next` and `quiet` count from then
}
local TEXTS = { told = true, learnt = true }
local MEMORY = 600000 -- how long an idle site is remembered (ms)
table.insert(FIELDS, 'last:' .. NODE)

local function keep(scope, field, value)
  if scope[field] ~= value then
    scope[field] = value
    scope.changed[field] = value
  end
end

local function forget(scope, field)
  scope[field] = nil
  scope.changed[field] = false
end

-- Keeps count of the members of `held` and `line` (`waiting` has those of `line`). A key that had none
-- is created by the next one, and then does not expire yet.
local function count(scope, key, change)
  scope.count[key] = scope.count[key] + change
  if scope.count[key] == 0 then scope.endless[key] = true end
end

-- Sets a part of what was learnt of the site.
local function learn(scope, part, value)
  if scope.site[part] ~= value then
    scope.site[part] = value
    scope.has_learnt = true
  end
end

-- While the scope was idle, the bucket's clock may have stood still, but not the wall clock.
local function wake(scope)
  local passed = math.max(0, WALL - scope.idle)
  keep(scope, 'next', scope.now + math.max(0, scope.next - passed))
  if scope.site.quiet > 0 then
    learn(scope, 'quiet', scope.now + math.max(0, scope.site.quiet - passed))
  end
  forget(scope, 'idle')
end

local function read(scope)
  local values = redis.call('HMGET', scope.state, unpack(FIELDS))
  for i, field in ipairs(FIELDS) do
    local value = values[i]
    if value then scope[field] = TEXTS[field] and value or tonumber(value) end
  end
  scope.changed, scope.count, scope.endless = {}, {}, { state = not scope.limit }
  for _, key in ipairs({ 'held', 'line' }) do
    scope.count[key] = 0
    count(scope, key, redis.call('ZCARD', scope[key]))
  end
  if scope.count.held + scope.count.line > 0 then scope.due = scope.due or 0 end
  scope.virtual = scope.virtual or 0
  scope.joined = scope.joined or 0
  scope.next = scope.next or 0
  scope.site = read_learnt(scope.learnt)
  if scope.idle then wake(scope) end
end

-- An adaptive limit starts low, to measure the site's usual latency.
local function apply_working_limit(scope)
  if scope.site.working == 0 then
    for _, part in ipairs(LEARNT) do
      scope.site[part] = scope.site[part] or 0
    end
    learn(scope, 'working', 1)
  end
  scope.in_force.limit = math.min(scope.in_force.most, math.floor(scope.site.working))
end

-- Takes the longest delay asked for, and the longest minimum gap: one node may vary its delay, while
-- another one has a Crawl-delay from robots.txt, which is a minimum.
local function agree_on_delay(scope)
  local asked = scope.asked
  if not scope.delay then
    keep(scope, 'delay', asked.delay)
    keep(scope, 'jitter', asked.jitter)
    return
  end
  local least = scope.delay * (1 - scope.jitter)
  local asked_least = asked.delay * (1 - asked.jitter)
  if asked.delay > scope.delay or asked_least > least then
    keep(scope, 'delay', math.max(scope.delay, asked.delay))
    keep(scope, 'jitter', 1 - math.max(least, asked_least) / scope.delay)
  end
end

-- A start that is further away than the delay in force was set before an operator shortened the delay.
local function apply_changed_delay(scope)
  if not scope.rule.delay and scope.ruled ~= 1 then return end
  local latest = scope.now + scope.in_force.delay * (1 + scope.in_force.jitter)
  if scope.next > latest then keep(scope, 'next', latest) end
end

-- The lowest limit asked for counts, until the scope is idle.
local function agree_on_limit(scope)
  local asked = scope.asked
  keep(scope, 'limit', math.min(scope.limit or asked.limit, asked.limit))
  agree_on_delay(scope)
  if asked.adaptive > 0 then keep(scope, 'adaptive', 1) end
  if scope.rule == NO_RULE and not scope.adaptive then
    scope.in_force = scope -- what the nodes ask for, as for most scopes
  else
    scope.in_force = in_force(scope.rule, scope.limit, scope.delay, scope.jitter, scope.adaptive)
  end
  apply_changed_delay(scope)
  if scope.in_force.adaptive then apply_working_limit(scope) end
end

-- The scores of these members, in their order; false for one that is not there.
local function scores(scope, key, ids)
  if scope.count[key] == 0 then return {} end
  return redis.call('ZMSCORE', scope[key], unpack(ids))
end

local function lease_end(scope)
  local ends = scope.now + LEASE
  keep(scope, 'due', math.min(scope.due or ends, ends))
  return ends
end

local function lengthen(scope, key, ids)
  if #ids == 0 then return end
  local ends, pairs_of = lease_end(scope), {}
  for i, id in ipairs(ids) do
    pairs_of[2 * i - 1], pairs_of[2 * i] = ends, id
  end
  redis.call('ZADD', scope[key], unpack(pairs_of))
end

local function pack_learnt(site)
  local values = {}
  for i, part in ipairs(LEARNT) do
    values[i] = site[part] or 0
  end
  return table.concat(values, ' ')
end

-- An idle scope keeps only the time of its next start, until then, and for a while what was learnt of
-- the site.
local function write_idle(scope)
  redis.call('DEL', scope.state)
  local site = scope.site
  site.quiet = math.max(0, site.quiet - scope.now)
  local wait = math.max(0, scope.next - scope.now)
  local kept = math.max(wait, site.quiet)
  if site.backoff + site.failures + site.working > 0 then kept = kept + MEMORY end
  if kept == 0 then return end
  redis.call('HSET', scope.state, 'next', wait, 'idle', WALL)
  if scope.ruled == 1 then redis.call('HSET', scope.state, 'ruled', 1) end
  if kept > wait or site.quiet > 0 then redis.call('HSET', scope.state, 'learnt', pack_learnt(site)) end
  redis.call('PEXPIRE', scope.state, math.ceil(kept))
end

-- Keys are kept longer than their epoch: when they have expired, so has it, and the next call finds an
-- unknown epoch, not an idle scope.
local function set_ends(scope, all)
  for _, key in ipairs({ 'held', 'line', 'waiting', 'state' }) do
    local counted = key == 'waiting' and 'line' or key
    if (all or scope.endless[counted]) and scope.count[counted] ~= 0 then
      redis.call('PEXPIREAT', scope[key], scope.expires)
    end
  end
end

local function write(scope)
  if scope.count.held + scope.count.line == 0 then return write_idle(scope) end
  local ends_soon = (scope.expires or 0) < scope.epoch.expires + KEPT / 2
  if ends_soon then keep(scope, 'expires', scope.epoch.expires + KEPT) end
  if scope.has_learnt then keep(scope, 'learnt', pack_learnt(scope.site)) end
  local values, gone = {}, {}
  for field, value in pairs(scope.changed) do
    if value then
      table.insert(values, field)
      table.insert(values, value)
    else
      table.insert(gone, field)
    end
  end
  in_parts('HSET', scope.state, values)
  in_parts('HDEL', scope.state, gone)
  set_ends(scope, ends_soon)
end
