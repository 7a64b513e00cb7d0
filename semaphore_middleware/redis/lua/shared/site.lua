-- Put in front of every verb, and of `inspect`: what is known of a site besides what nodes ask for.
-- Keys, arguments and reply: see the prelude.
-- Rules are what operators have set. A bucket's rules key has fields "<part>:<name>", where a name is
-- a scope, or "*." and a host for each host below it. They win over what nodes ask for.

local PARTS = { 'concurrency', 'delay', 'jitter', 'adaptive', 'paused', 'by' }

local how_many = {} -- rules key -> its fields: one look is enough for a call
local NO_RULE = {} -- of most scopes, so none is made for each

local function are_rules_in(key)
  how_many[key] = how_many[key] or redis.call('HLEN', key)
  return how_many[key] > 0
end

-- Each part as the most exact name has it that has it at all: the scope, then the longest pattern.
-- There may be thousands of rules, so none is read that is not for this scope.
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

-- What holds now: an operator's word before the nodes'.
local function in_force(rule, limit, delay, jitter, adaptive)
  if rule.adaptive then adaptive = rule.adaptive == '1' end
  local most = rule.concurrency and tonumber(rule.concurrency) or limit
  return {
    most = most,
    limit = most, -- but for an adaptive one, whose working limit is lower at times
    delay = rule.delay and tonumber(rule.delay) or delay,
    jitter = rule.jitter and tonumber(rule.jitter) or jitter,
    adaptive = adaptive,
    paused = rule.paused == '1',
  }
end

-- What its answers have taught about the site, in one field, for most sites have taught nothing.
local LEARNT = {
  'quiet', -- no start before; the site said "not now"
  'backoff', -- the last such pause that had to be guessed, decayed (ms)
  'failures', -- in a row
  'working', -- the working limit, where it is adaptive; a fraction counts from one answer to the next
  'base', -- the site's own latency, as the logarithm of milliseconds; 0: not known
  'steady', -- 1 once the working limit has met the site's, and grows slowly
  'samples', 'sum', 'since', -- of latencies, under this working limit
}

local function read_learnt(text)
  local learnt = { quiet = 0, backoff = 0, failures = 0, working = 0 } -- the others only adapt
  if text then
    local values = string.gmatch(text, '%S+')
    for _, part in ipairs(LEARNT) do
      learnt[part] = tonumber(values())
    end
  end
  return learnt
end
