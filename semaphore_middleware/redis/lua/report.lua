-- Gives permits back, with feedback on the requests made under them. Safe to send twice: feedback on
-- permits that have all been given back already is ignored.
-- Keys, arguments and reply: see the prelude.

return for_each_scope(function(scope)
  scope.used, scope.wanted = scope.count.held, scope.count.held + scope.count.line
  if leave(scope, scope.ids) and scope.report ~= '' then hear_answers(scope) end
end)
