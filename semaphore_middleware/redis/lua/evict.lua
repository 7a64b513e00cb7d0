-- Closes a dead node's accounts, before their leases end.
-- KEYS: epoch, rules; then for each scope: scope, queue. ARGV: see `scope`.
-- Reply: how many permits it held, and how many requests of it waited.

local held, waiting = 0, 0
write_clock(EPOCH)
for i = 3, #KEYS, 2 do
  local scope = read_scope(KEYS[i], KEYS[i + 1])
  local account = scope.accounts[NODE]
  if account then
    held, waiting = held + held_by(account), waiting + waiting_at(account)
    close_account(scope, NODE, account)
    apply_limit(scope)
    promote(scope)
    write_scope(scope)
  end
end
return { held, waiting }
