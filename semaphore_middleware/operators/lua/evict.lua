-- Closes a dead node's entries before their leases end. Grants nothing: waiting nodes are notified, check the
-- server's incarnation, and ask again.
-- KEYS: epoch, rules, index; then for each scope: scope, queue. ARGV: see `clock`; the node.
-- Reply: the number of permits that the node held, and of its waiting requests.

@include(semaphore_middleware.core:shared/common)
@include(semaphore_middleware.core:shared/promote)

local held, waiting = 0, 0

local function evict_from(key, queue)
  local scope = read_scope(key, queue, read_fields(key))
  if scope.job == false then read_jobs(scope) end
  local entry = scope.own
  if not entry then return end
  held, waiting = held + held_by(entry), waiting + waiting_at(entry) + entry.suspended
  close_entry(scope, NODE, entry)
  scope.due = NOW -- others may have a looser limit
  apply_limit(scope)
  count_begun(scope)
  write_scope(scope)
end

if IS_CLOCK_LATE then write_clock() end
for i = 4, #KEYS, 2 do
  local is_done, raised = pcall(evict_from, KEYS[i], KEYS[i + 1])
  if not is_done then problem_of(raised) end
end
return { held, waiting }
