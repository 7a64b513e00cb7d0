-- Shared by `sync`, `evict`, `inspect` and `forget`: the nodes' accounts with a scope, fields of the scope's
-- hash.

local function read_account(text)
  if not text then return nil end
  local account = { @zero(account), is_queued = false }
  @account.(account) = cmsgpack.unpack(text)
  check_read(account.burst)
  account.is_queued = account.asked > account.granted
  return account
end

local function pack_account(account)
  return cmsgpack.pack(@account.(account))
end

local function held_by(account)
  return account.granted - account.returned
end

local function waiting_at(account)
  return math.max(0, account.asked - account.granted)
end

-- A node's account; false: it has none.
local function account_of(scope, node)
  if node == NODE then return scope.own end
  scope.others = scope.others or {}
  if scope.others[node] == nil then
    scope.others[node] = read_account(redis.call('HGET', scope.key, 'node:' .. node)) or false
  end
  return scope.others[node]
end

local MOST_LOOKED_AT = 1000
local looked_at = 0

-- Whether this call has looked at so many accounts that others have waited long enough for the server.
local function has_looked_enough()
  return looked_at >= MOST_LOOKED_AT
end

-- Calls visit(node, account) for each open account.
local function for_each_account(scope, visit)
  scope.others = scope.others or {}
  local fields = redis.call('HGETALL', scope.key)
  looked_at = looked_at + #fields / 2
  for i = 1, #fields, 2 do
    local node = string.match(fields[i], '^node:(.*)$')
    if node and node ~= NODE and scope.others[node] == nil then
      scope.others[node] = read_account(fields[i + 1])
    end
  end
  if scope.own then visit(NODE, scope.own) end
  for node, account in pairs(scope.others) do
    if account then visit(node, account) end
  end
end
