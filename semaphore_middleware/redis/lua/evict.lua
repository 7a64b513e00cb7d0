-- Closes a dead node's accounts, before their leases end.
-- KEYS: epoch, rules; then for each scope: scope, queue. ARGV: see `clock`; the node.
-- Reply: how many permits it held, and how many requests of it waited.

local held, waiting = 0, 0
if IS_CLOCK_LATE then write_clock() end
for i = 3, EPOCH and #KEYS or 0, 2 do -- without an epoch nothing may be granted
  local scope = read_scope(KEYS[i], KEYS[i + 1])
  local account = scope.own
  if account then
    held, waiting = held + held_by(account), waiting + waiting_at(account)
    close_account(scope, NODE, account)
    apply_limit(scope)
    promote(scope)
    write_scope(scope)
  end
end
return { held, waiting }
