-- Tries commands, so that a missing right or a renamed command is found at the start, not when it is first
-- needed. Leaves nothing.
-- KEYS: a trial key, also the name of a channel without subscribers; then others: the server checks the right
-- to them.
-- ARGV: the commands.
-- Reply: those that this user may not use; the libraries that the server's Lua does not have.

local TRIAL = KEYS[1]
local denied, missing = {}, {}

for _, command in ipairs(ARGV) do
  local arguments, problem = {}, nil
  repeat -- rights are checked only if the number of arguments is right
    local reply = redis.pcall(command, unpack(arguments))
    problem = type(reply) == 'table' and reply.err or ''
    table.insert(arguments, TRIAL)
  until #arguments > 5 or not string.find(problem, 'rong number of arg')
  if string.find(problem, 'ACL failure') or string.find(problem, 'The user executing')
    or string.find(problem, 'not allowed from script')
    or string.find(problem, '[Uu]nknown') then -- the last: it was renamed
    table.insert(denied, command)
  end
end
redis.pcall('PEXPIRE', TRIAL, 1000) -- if it may not be deleted
redis.pcall('DEL', TRIAL)

local libraries = {
  cjson = function() return cjson.decode end,
  cmsgpack = function() return cmsgpack.unpack end,
  struct = function() return struct.unpack end,
}
for library, look in pairs(libraries) do
  if not pcall(look) then table.insert(missing, library) end
end
return { denied, missing }
