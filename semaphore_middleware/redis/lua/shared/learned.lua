-- Shared by `sync`, `evict`, `inspect` and `forget`: what a site's answers have taught, a field of the
-- scope's hash that most scopes do not have.

local function nothing_learned()
  return {
    backoff_end = 0, backoff = 0, failures = 0, failing_since = 0, is_down = 0, answered = 0,
    working = 0, base = 0, steady = 0, samples = 0, sum = 0, since = 0,
  }
end

local IN_A_ROW = 3 -- requests without response that count as a refusal

-- Whether a site does not respond: then one request at a time tries it.
local function is_failing(learned)
  return learned and learned.failures >= IN_A_ROW
end

local function read_learned(text)
  local learned = {}
  learned.backoff_end, learned.backoff, learned.failures, learned.failing_since, learned.is_down,
    learned.answered, learned.working, learned.base, learned.steady, learned.samples, learned.sum,
    learned.since =
    cmsgpack.unpack(text)
  check_read(learned.since)
  return learned
end

local function pack_learned(learned)
  return cmsgpack.pack(
    learned.backoff_end, -- no start before: the site refused a request, or asked for a pause
    learned.backoff, -- the last pause that the site did not set itself, lowered by good answers
    learned.failures, learned.failing_since, -- requests without response in a row; the first one's time
    learned.is_down, -- 1 if requests are to fail, but for one at a time
    learned.answered, -- when the youngest request began that is known to be answered well; 0: none is
    -- Of adaptive limits:
    learned.working, -- the working limit, not rounded; 0: none yet
    learned.base, -- the site's usual latency, as the logarithm of milliseconds; 0: not known
    learned.steady, -- 1 once the working limit has been too high, and so grows slowly
    learned.samples, learned.sum, learned.since -- of latencies under this working limit
  )
end
