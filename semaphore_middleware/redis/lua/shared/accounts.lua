-- Shared by `sync`, `evict` and `inspect`: one node's account with a scope, a field of the scope's hash.

local function check_read(last_value)
  if last_value == nil then error('it is too short', 0) end
end

local function read_account(text)
  if not text then return nil end
  local account = {
    term = 0, seq = 0, asked = 0, granted = 0, returned = 0, started = 0, pending = 0,
    lease_end = 0, served = 0, held_since = 0, waiting_since = 0, concurrency = 0, delay = 0, jitter = 0,
    adaptive = 0, interval = 0, burst = 1, is_queued = false,
  }
  account.term, account.seq, account.asked, account.granted, account.returned, account.started,
    account.pending, account.lease_end, account.served, account.held_since, account.waiting_since,
    account.concurrency, account.delay, account.jitter, account.adaptive, account.interval, account.burst =
    cmsgpack.unpack(text)
  check_read(account.burst)
  account.is_queued = account.asked > account.granted
  return account
end

local function pack_account(account)
  return cmsgpack.pack(
    account.term, account.seq, -- the node's numbers of the account, and of the latest statement
    account.asked, account.granted, account.returned, account.started,
    account.pending, -- of the permits that it holds, those under which no request has begun
    account.lease_end, -- when the account is closed, unless its node speaks again
    account.served, -- the scope's tick when it was last granted a permit, or opened
    account.held_since, account.waiting_since, -- since when its oldest request holds, or waits
    -- The limit that its node asks for:
    account.concurrency, account.delay, account.jitter, account.adaptive, account.interval, account.burst
  )
end

local function held_by(account)
  return account.granted - account.returned
end

local function waiting_at(account)
  return math.max(0, account.asked - account.granted)
end
