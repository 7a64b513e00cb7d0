-- Shared by `sync`, `evict` and `inspect`: what operators have set, which overrides what nodes ask for.
-- KEYS[1]: epoch; KEYS[2]: rules, a hash: name -> JSON object of the parts that are set. A name is a
-- scope, or "*." and a host for each host below it.

local PREFIX = string.match(KEYS[1], '^(.*):epoch$')
local LONGEST_HOST = 253 -- bytes; a longer name is no host, and no pattern fits it
local UNIT_MS = { s = 1000, m = 60000, h = 3600000, d = 86400000 }
local NO_RULE = {} -- shared by all scopes without one, which most are

local function name_of(key)
  return string.sub(key, #PREFIX + #':scope:' + 1)
end

-- The names of rules that fit a scope, the most exact one first.
local function names_above(scope)
  local names, rest = { scope }, #scope <= LONGEST_HOST and scope
  while rest do
    rest = string.match(rest, '^[^.]*%.(.+)$')
    if rest then table.insert(names, '*.' .. rest) end
  end
  return names
end

-- Takes each part from the most exact name that sets it.
local function rule_of(scope)
  local rule = NO_RULE
  for _, text in ipairs(redis.call('HMGET', KEYS[2], unpack(names_above(scope)))) do
    if text then
      if rule == NO_RULE then rule = {} end
      for part, value in pairs(cjson.decode(text)) do
        if rule[part] == nil then rule[part] = value end
      end
    end
  end
  return rule
end

-- The time between two starts at a rate like "60/m"; 0 for "none".
local function interval_of(rate)
  local number, unit = string.match(rate, '^(.+)/(%a)$')
  return number and UNIT_MS[unit] / number or 0
end

-- The limit in force: `agreed` is what the nodes ask for.
local function in_force(rule, agreed)
  if rule == NO_RULE then
    agreed.limit = agreed.concurrency
    return agreed
  end
  local force = {}
  for part, value in pairs(agreed) do
    force[part] = value
  end
  force.concurrency = rule.concurrency or agreed.concurrency
  if rule.delay then force.delay = rule.delay * 1000 end
  if rule.jitter then force.jitter = rule.jitter end
  if rule.adaptive ~= nil then force.adaptive = rule.adaptive end
  if rule.rate then force.interval = interval_of(rule.rate) end
  if rule.burst then force.burst = rule.burst end
  force.limit = force.concurrency -- lower at times if it is adaptive
  force.paused = rule.paused == true
  return force
end
