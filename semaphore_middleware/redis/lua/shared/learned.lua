-- Shared by `sync`, `evict`, `inspect` and `forget`: what a site's answers have taught, a field of the
-- scope's hash that most scopes do not have.

local function nothing_learned()
  return { @zero(learned) }
end

local IN_A_ROW = 3 -- requests without response that count as a refusal

-- Whether a site does not respond: then one request at a time tries it.
local function is_failing(learned)
  return learned and learned.failures >= IN_A_ROW
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
