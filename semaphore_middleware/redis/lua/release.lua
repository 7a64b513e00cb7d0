-- Gives permits back, held or still waited for; an unknown one is no error. Safe to send twice.
-- Keys, arguments and reply: see the prelude.

return for_each_scope(function(scope)
  leave(scope, scope.ids)
end)
