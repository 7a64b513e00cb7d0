-- Shared by `sync`, `evict`, `inspect` and `clear_backoff`: what a site's answers have taught, a field of the
-- scope's hash that most scopes do not have.

local function nothing_learned()
  return {
    backoff_end = 0, backoff = 0, failures = 0, working = 0, base = 0, steady = 0, samples = 0, sum = 0,
    since = 0,
  }
end

local function read_learned(text)
  local learned = {}
  learned.backoff_end, learned.backoff, learned.failures, learned.working, learned.base,
    learned.steady, learned.samples, learned.sum, learned.since =
    cmsgpack.unpack(text)
  return learned
end

local function pack_learned(learned)
  return cmsgpack.pack(
    learned.backoff_end, -- no start before: the site refused a request
    learned.backoff, -- the last pause that the site did not set itself, lowered by good answers
    learned.failures, -- requests without answer, in a row
    -- Of adaptive limits:
    learned.working, -- the working limit, not rounded; 0: none yet
    learned.base, -- the site's usual latency, as the logarithm of milliseconds; 0: not known
    learned.steady, -- 1 once the working limit has been too high, and so grows slowly
    learned.samples, learned.sum, learned.since -- of latencies under this working limit
  )
end
