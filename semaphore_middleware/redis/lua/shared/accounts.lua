-- Shared by `sync`, `evict`, `inspect` and `forget`: one node's account with a scope, a field of the scope's
-- hash.

local function read_account(text)
  if not text then return nil end
  local account = { @zero(account), is_queued = false }
  @account.(account) = cmsgpack.unpack(text)
  check_read(account.burst)
  account.is_queued = account.asked > account.granted
  return account
end

local function pack_account(account)
  return cmsgpack.pack(@account.(account))
end

local function held_by(account)
  return account.granted - account.returned
end

local function waiting_at(account)
  return math.max(0, account.asked - account.granted)
end
