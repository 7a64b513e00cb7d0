-- Forgets that a site has said "not now", and nothing else of what its answers have taught.
-- KEYS: state. ARGV: none. Reply: whether there was anything to forget.

local learnt = redis.call('HGET', KEYS[1], 'learnt')
if not learnt then return 0 end
-- The first two of LEARNT: `quiet` and `backoff`.
redis.call('HSET', KEYS[1], 'learnt', (string.gsub(learnt, '^%S+ %S+', '0 0')))
return 1
