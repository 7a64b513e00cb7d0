-- Shared by `sync`, `evict`, `inspect` and `forget`: the effective limit at a scope. It is the strictest that
-- nodes with open entries ask for, unless an operator has set something else.

-- Makes the limit of a scope as strict as this entry's. The longest delay counts, and the longest minimum
-- interval: one node may vary its delay, while another one has a Crawl-delay from robots.txt, which is a
-- minimum.
local function tighten(scope, entry)
  if scope.concurrency == 0 then
    @scope.(limit) = @entry.(limit)
    return
  end
  scope.concurrency = math.min(scope.concurrency, entry.concurrency) -- promise: lowest limit
  scope.adaptive = math.max(scope.adaptive, entry.adaptive)
  if entry.interval > 0 then
    -- promise: smallest burst
    scope.burst = scope.interval == 0 and entry.burst or math.min(scope.burst, entry.burst)
    scope.interval = math.max(scope.interval, entry.interval) -- promise: slowest rate
  end
  local least, own_least = scope.delay * (1 - scope.jitter), entry.delay * (1 - entry.jitter)
  if entry.delay > scope.delay or own_least > least then
    scope.delay = math.max(scope.delay, entry.delay) -- promise: longest delay
    scope.jitter = 1 - math.max(least, own_least) / scope.delay -- promise: longest minimum
  end
end

-- Rules of operators override what nodes ask for. KEYS[2]: rules, a hash: name -> JSON object of the parts
-- that are set. A name is a scope; "*." and a host for each host below it; a kind and ":*" for all scopes of
-- that kind; or "*" for every scope. For each part, the most exact name that sets it counts.
local function apply_rules(scope)
  local LONGEST_HOST = 253 -- bytes; a longer name is not a host, and matches no pattern
  local MOST_LABELS = 10 -- of a pattern's host, as LABELS_MAX in model/rules.py: no rule has more
  local UNIT_MS = { s = 1000, m = 60000, h = 3600000, d = 86400000 }
  local name = name_of(scope.key)
  local kind = string.match(name, '^(%a+):')
  local has_kind = kind == 'via' or kind == 'domain' or kind == 'proxy'
  local names = { name, has_kind and kind .. ':*' or nil }
  local rest, parent = not has_kind and #name <= LONGEST_HOST and name or '', ''
  for _ = 1, MOST_LABELS do
    local before, label = string.match(rest, '^(.*)%.(.*)$')
    if not before then break end
    rest, parent = before, '.' .. label .. parent
    table.insert(names, 2, '*' .. parent) -- the most exact one comes first
  end
  table.insert(names, '*')
  local rule = {}
  for i, text in ipairs(redis.call('HMGET', KEYS[2], unpack(names))) do
    local is_read, parts = pcall(cjson.decode, text or '{}')
    if not is_read or type(parts) ~= 'table' or parts[1] then
      parts, scope.problem = {}, string.format('the rule for %s is ignored: not a JSON object', names[i])
    end
    for part, value in pairs(parts) do
      if rule[part] == nil then rule[part] = value end
    end
  end
  if rule.delay then rule.delay = 1000 * rule.delay end
  if rule.adaptive ~= nil then rule.adaptive = rule.adaptive and 1 or 0 end
  if rule.rate then
    local number, unit = string.match(rule.rate, '^(.+)/(%a)$')
    rule.interval = number and UNIT_MS[unit] / number or 0 -- 0: "none"
  end
  -- promise: operator's number
  rule.paused, rule.limit = rule.paused == true, rule.concurrency or scope.concurrency
  scope.effective = setmetatable(rule, { __index = scope })
end

local function apply_limit(scope)
  if rules and rules ~= '0' then
    apply_rules(scope)
  else
    -- Without rules the scope's own fields are the effective limit: no table is made for it.
    scope.effective, scope.limit = scope, scope.concurrency
  end
  @hook(on_limit)
end
