-- Clears a site's backoff, and that it is down; nothing else of what its answers have taught.
-- KEYS: scope. ARGV: none. Reply: nothing.

local text = redis.call('HGET', KEYS[1], 'learned')
if text then
  local learned = read_learned(text)
  learned.backoff_end, learned.backoff = 0, 0
  learned.failures, learned.failing_since, learned.is_down = 0, 0, 0
  redis.call('HSET', KEYS[1], 'learned', pack_learned(learned))
end
