-- Shared by `note_history` and `sync`: the keys of the history, as `Keys` in redis/keys.py names them.

local HISTORY_KEY = PREFIX .. ':history'

-- The hash of what was done to a scope in an hour. `at`: a time in that hour (ms).
local function hour_key(at, scope)
  return string.format('%s:%d:%s', HISTORY_KEY, at / HOUR, scope)
end

-- The hash and the field of a pause.
local function pause_place(paused_at, scope)
  return hour_key(paused_at, scope), string.format('pause:%.0f', paused_at)
end
