-- Shared by `sync`, `evict` and `inspect`: a scope's hash, with a field for each node's account.
-- Fields: "state", "learned" (only if there is anything), and "node:<name>" for each account.

-- One node's account with a scope. `term` and `seq` are the node's numbers of the account and of the
-- latest statement; `asked`, `granted`, `returned` and `started` count from the account's opening.
local function read_account(text)
  if not text then return nil end
  local account = {}
  account.term, account.seq, account.asked, account.granted, account.returned, account.started, account.lease_end, account.served, account.held_since, account.waiting_since =
    cmsgpack.unpack(text)
  return account
end

local function pack_account(account)
  return cmsgpack.pack(
    account.term, account.seq, account.asked, account.granted, account.returned, account.started,
    account.lease_end, -- when the account is closed, unless its node speaks again
    account.served, -- the scope's tick when it was last granted a permit, or opened
    account.held_since, account.waiting_since -- since when its oldest request holds, or waits
  )
end

local function held_by(account)
  return account.granted - account.returned
end

local function waiting_at(account)
  return math.max(0, account.asked - account.granted)
end

-- A site's answers have taught this. Only `adaptive` limits use the last five.
local function read_learned(text)
  local learned = {
    backoff_end = 0, backoff = 0, failures = 0, working = 0,
    base = 0, steady = 0, samples = 0, sum = 0, since = 0,
  }
  if text then
    learned.backoff_end, learned.backoff, learned.failures, learned.working, learned.base, learned.steady, learned.samples, learned.sum, learned.since =
      cmsgpack.unpack(text)
  end
  return learned
end

local function pack_learned(learned)
  return cmsgpack.pack(
    learned.backoff_end, -- no start before: the site refused a request
    learned.backoff, -- the last pause that the site did not set itself, lowered by good answers
    learned.failures, -- requests without answer, in a row
    learned.working, -- the working limit, if it is adaptive; not rounded
    learned.base, -- the site's usual latency, as the logarithm of milliseconds; 0: not known
    learned.steady, -- 1 once the working limit has been too high, and so grows slowly
    learned.samples, learned.sum, learned.since -- of latencies under this limit
  )
end
