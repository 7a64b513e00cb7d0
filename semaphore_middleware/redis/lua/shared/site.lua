-- Put in front of every verb, and of `inspect`: rules, and what was learnt of a site.
-- Keys, arguments and reply: see the prelude.
-- Rules are what operators have set. A bucket's rules key has fields "<part>:<name>", where a name is
-- a scope, or "*." and a host for each host below it. They override what nodes ask for.

local PARTS = { 'concurrency', 'delay', 'jitter', 'adaptive', 'paused', 'by' }

local how_many = {} -- rules key -> number of its fields: one look is enough for a call
local NO_RULE = {} -- shared by all scopes without one, which most are

local function are_rules_in(key)
  how_many[key] = how_many[key] or redis.call('HLEN', key)
  return how_many[key] > 0
end

-- Takes each part from the most specific name that sets it: the scope, then the longest pattern. There
-- may be thousands of rules, so only those for this scope are read.
local function rule_of(held, key)
  if not are_rules_in(key) then return NO_RULE end
  local rule, name = {}, string.match(held, '}:(.*):held$')
  local rest = name
  while rest do
    local fields = {}
    for i, part in ipairs(PARTS) do
      fields[i] = part .. ':' .. name
    end
    local found = redis.call('HMGET', key, unpack(fields))
    for i, part in ipairs(PARTS) do
      rule[part] = rule[part] or found[i] or nil
    end
    rest = string.match(rest, '^[^.]*%.(.+)$')
    name = rest and '*.' .. rest
  end
  return rule
end

-- The limit in force: rules override what nodes ask for.
local function in_force(rule, limit, delay, jitter, adaptive)
  if rule.adaptive then adaptive = rule.adaptive == '1' end
  local most = rule.concurrency and tonumber(rule.concurrency) or limit
  return {
    most = most,
    limit = most, -- lower at times if it is adaptive
    delay = rule.delay and tonumber(rule.delay) or delay,
    jitter = rule.jitter and tonumber(rule.jitter) or jitter,
    adaptive = adaptive,
    paused = rule.paused == '1',
  }
end

-- What was learnt of a site from its answers. One field holds it all, as most sites have none of it.
local LEARNT = {
  'quiet', -- no start before: the site refused a request
  'backoff', -- the last pause that the site did not set itself, lowered by good answers (ms)
  'failures', -- requests without answer, in a row
  'working', -- the working limit, if it is adaptive; not rounded
  'base', -- the site's usual latency, as the logarithm of milliseconds; 0: not known
  'steady', -- 1 once the working limit has been too high, and so grows slowly
  'samples', 'sum', 'since', -- of latencies under this working limit
}

local function read_learnt(text)
  local learnt = { quiet = 0, backoff = 0, failures = 0, working = 0 } -- the others are only there if it is adaptive
  if text then
    local values = string.gmatch(text, '%S+')
    for _, part in ipairs(LEARNT) do
      learnt[part] = tonumber(values())
    end
  end
  return learnt
end
