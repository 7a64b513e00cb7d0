-- Joins the line for each permit, or says again what became of it. Safe to send twice.
-- Keys, arguments and reply: see the prelude.

return for_each_scope(function(scope)
  local new = {}
  for _, id in ipairs(scope.ids) do
    if redis.call('ZSCORE', scope.held, id) then
      redis.call('ZADD', scope.held, scope.now + LEASE, id)
      table.insert(scope.granted, number_of(id))
    elseif redis.call('ZSCORE', scope.line, id) then
      redis.call('ZADD', scope.waiting, scope.now + LEASE, id)
    else
      table.insert(new, id)
    end
  end
  join(scope, new)
end)
