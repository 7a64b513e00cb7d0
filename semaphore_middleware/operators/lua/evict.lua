-- Closes a dead node's entries, before their leases end. It grants nothing: nodes that wait are notified to
-- ask again, and check whether the server still is in the incarnation that they know.
-- KEYS: epoch, rules, index; then for each scope: scope, queue. ARGV: see `clock`; the node.
-- Reply: how many permits it held, and how many requests of it waited.

@include(semaphore_middleware.core:shared/scopes)
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
