-- Shared by `sync`, `evict`, `inspect` and `forget`: what a site's answers have taught, a field of the
-- scope's hash that most scopes do not have.

local function nothing_learned()
  return { @zero(learned) }
end

local IN_A_ROW = 3 -- requests without response that count as a refusal
local MOST_TRIED = 16 -- nodes that are remembered

-- Whether a site responds to nobody: then one request at a time tries it.
local function is_failing(learned)
  return learned and learned.is_failing == 1
end

-- Whether a node believes that a site does not respond: it has tried itself, or nodes on two machines have,
-- or a crowd.
local function believes(learned, node)
  local tried, first = 0, nil
  for machine, name in string.gmatch(learned.tried, '(%d+) (%Z+)') do
    if name == node then return true end
    first, tried = first or machine, tried + 1
    if machine ~= first then return true end
  end
  return tried >= MOST_TRIED
end

-- It responds: nothing is left of its failures.
local function end_failing(learned)
  learned.failures, learned.failing_since, learned.failing_end = 0, 0, 0
  learned.is_failing, learned.is_down, learned.tried, learned.trial = 0, 0, '', ''
end

local function read_learned(text)
  local learned = {}
  @learned.(learned) = cmsgpack.unpack(text)
  check_read(learned.since)
  return learned
end

local function pack_learned(learned)
  return cmsgpack.pack(@learned.(learned))
end
