-- Forgets a site's backoff and what policies have found; or all that was learned from its answers, and the
-- limits of nodes without an open entry.
-- KEYS: epoch, rules, index, scope, queue. ARGV: see `clock`; no node; "backoff" or "all". Reply: nothing.

@include(semaphore_middleware.core:shared/common)
@include(semaphore_middleware.core:shared/promote)

local scope = read_scope(KEYS[4], KEYS[5], read_fields(KEYS[4]))
local learned = scope.learned
if ARGV[3] == 'all' then
  redis.call('HDEL', KEYS[4], 'learned')
  if is_in_use(scope) then
    scope.due = 0
    redis.call('HSET', KEYS[4], 'state', pack_state(scope))
  end
elseif learned then
  learned.backoff_end, learned.backoff = 0, 0
  @hook(forget)
  redis.call('HSET', KEYS[4], 'learned', pack_learned(learned))
end
