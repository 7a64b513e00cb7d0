-- Gives permits back, and tells what the site answered to the requests under them. Safe to send
-- twice: what is said of permits that are all back already is not heard again.
-- Keys, arguments and reply: see the prelude.

return for_each_scope(function(scope)
  scope.used, scope.wanted = scope.count.held, scope.count.held + scope.count.line
  if leave(scope, scope.ids) and scope.report ~= '' then hear_answers(scope) end
end)
