-- Part of try_rights, here and in the frontier: tries each command of a list, so that a right that is
-- missing, or a command that was renamed, is found at the start, not when it is first needed. Together they
-- leave nothing.

local denied = {}
for _, command in ipairs(COMMANDS) do
  local reply = redis.pcall(unpack(command))
  local problem = type(reply) == 'table' and reply.err
  if problem and (string.find(problem, 'ACL failure') or string.find(problem, 'The user executing')
    or string.find(problem, '[Uu]nknown')) then -- the last: it was renamed
    table.insert(denied, command[1])
  elseif problem then
    return reply
  end
end
return denied
