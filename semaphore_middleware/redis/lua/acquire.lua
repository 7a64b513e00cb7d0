-- Queues for each permit, or says again what became of it. Safe to send twice.
-- Keys, arguments and reply: see the prelude.

return for_each_scope(function(scope)
  local held, waits = scores(scope, 'held', scope.ids), scores(scope, 'line', scope.ids)
  local to_hold, to_wait = {}, {}
  for i, id in ipairs(scope.ids) do
    if held[i] then
      table.insert(to_hold, id)
      table.insert(scope.granted, number_of(id))
    elseif waits[i] then
      table.insert(to_wait, id)
    else
      table.insert(scope.coming, id)
    end
  end
  lengthen(scope, 'held', to_hold)
  lengthen(scope, 'waiting', to_wait)
end)
