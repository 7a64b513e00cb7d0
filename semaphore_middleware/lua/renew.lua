-- Lengthens the leases of held permits. One that the server does not know is lost, unless the
-- server has just begun a life: then it is written down again, above the limit if need be.
-- Safe to send twice. Keys, arguments and reply: see the prelude.

return for_each_scope(function(scope)
  for _, id in ipairs(scope.ids) do
    local lease_end = tonumber(redis.call('ZSCORE', scope.held, id) or 0)
    if lease_end > scope.now then
      redis.call('ZADD', scope.held, scope.now + LEASE, id)
    elseif scope.now < scope.from then
      leave_line(scope, id) -- where an old snapshot still has it
      redis.call('ZADD', scope.held, scope.now + LEASE, id)
      redis.call('HSET', scope.state, 'since:' .. id, scope.now)
      scope.fresh = true
    else
      table.insert(scope.lost, number_of(id))
    end
  end
end)
