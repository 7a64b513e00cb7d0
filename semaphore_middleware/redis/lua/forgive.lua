-- Clears a site's backoff, and nothing else of what its answers have taught.
-- KEYS: state. ARGV: none. Reply: 1 if there was anything to clear, else 0.

local learnt = redis.call('HGET', KEYS[1], 'learnt')
if not learnt then return 0 end
-- The first two of LEARNT: `quiet` and `backoff`.
redis.call('HSET', KEYS[1], 'learnt', (string.gsub(learnt, '^%S+ %S+', '0 0')))
return 1
