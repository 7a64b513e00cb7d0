-- Reads a site's history in some hours. Changes nothing.
-- KEYS: for each hour history:<hour>:<scope>.
-- Reply: for each hour the fields and values of its hash, with minutes and pauses as packed records.

local replies = {}
for i, key in ipairs(KEYS) do
  local fields = redis.call('HGETALL', key)
  for at = 1, #fields, 2 do
    if string.find(fields[at], '^%d') then
      fields[at + 1] = struct.pack('@format(minute)', cmsgpack.unpack(fields[at + 1]))
    elseif string.find(fields[at], '^pause:') then
      fields[at + 1] = struct.pack('@format(pause)', cmsgpack.unpack(fields[at + 1]))
    end
  end
  replies[i] = fields
end
return replies
