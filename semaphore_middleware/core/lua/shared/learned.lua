-- Shared by `sync`, `evict`, `inspect` and `forget`: what a site's answers have taught, a field of the
-- scope's hash that most scopes do not have.

local function nothing_learned()
  return { @zero(learned) }
end

local function read_learned(text)
  local learned = {}
  @learned.(learned) = cmsgpack.unpack(text)
  check_read(learned.answered)
  return learned
end

local function pack_learned(learned)
  return cmsgpack.pack(@learned.(learned))
end
