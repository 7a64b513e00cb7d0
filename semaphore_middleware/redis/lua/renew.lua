-- Extends the leases of held permits. A permit that the server does not know is lost, except during
-- the recovery wait: then it is recorded again, above the limit if need be.
-- Safe to send twice. Keys, arguments and reply: see the prelude.

return for_each_scope(function(scope)
  local ends = scores(scope, 'held', scope.ids)
  local alive, claimed = {}, {}
  for i, id in ipairs(scope.ids) do
    if (tonumber(ends[i]) or 0) > scope.now then
      table.insert(alive, id)
    elseif scope.now < scope.from then
      table.insert(claimed, id)
    else
      table.insert(scope.lost, number_of(id))
    end
  end
  lengthen(scope, 'held', alive)
  if #claimed > 0 then
    leave(scope, claimed) -- an old snapshot may have it in the queue, or with an expired lease
    lengthen(scope, 'held', claimed)
    count(scope, 'held', #claimed)
    for _, id in ipairs(claimed) do
      keep(scope, 'since:' .. id, scope.now)
    end
  end
end)
