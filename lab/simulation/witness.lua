-- Reports to the judge when permits are granted, and how many failures were counted.

STEP = 0 -- the clock's longest step, ms
NOTE_GRANT = nil -- function(key, node, lease_id, first, last): these permits of the lease were granted
FAILURES = {} -- key -> requests without response that were counted there
IN_A_ROW = {} -- key -> how many of them came one after the other
OPENED_LATE = {} -- key -> entries that a late update has opened anew
LATEST = {} -- key and node -> the lease id and the number of the latest update

FAILED_AT = 0 -- the place in "learned" of the number of requests without response, in a row; 0: it has none

local LEASE_ID, SEQ, GRANTED, RETURNED = 1, 2, 4, 5 -- as entries.lua packs them

-- Then nothing is granted, and what nodes claim to hold is accepted. As clock.lua counts.
local function is_recovering(key)
  local epoch = DB[string.match(key, '^(.-):scope:') .. ':epoch'].h
  local advance = math.max(0, math.floor(WALL) - tonumber(epoch.wall))
  return tonumber(epoch.clock) + math.min(advance, STEP) < tonumber(epoch.from)
end

local function note_opening(key, node, new, old)
  local latest = LATEST[key .. node]
  local is_late = latest and (latest[LEASE_ID] > new[LEASE_ID] or latest[LEASE_ID] == new[LEASE_ID]
    and latest[SEQ] >= new[SEQ])
  if not old and is_late then
    OPENED_LATE[key] = (OPENED_LATE[key] or 0) + 1
  end
  if not is_late then LATEST[key .. node] = new end
end

function WITNESS(key, field, new, old)
  local node = string.match(field, '^node:(.*)$')
  if node then
    note_opening(key, node, new, old)
    local is_same = old and old[LEASE_ID] == new[LEASE_ID]
    local before = is_same and old[GRANTED] or new[RETURNED]
    if new[GRANTED] > before and not is_recovering(key) then NOTE_GRANT(key, node, new[LEASE_ID], before + 1,
      new[GRANTED]) end
  elseif field == 'learned' then
    local count = new[FAILED_AT] or 0
    FAILURES[key] = (FAILURES[key] or 0) + math.max(0, count - (IN_A_ROW[key] or 0))
    IN_A_ROW[key] = count
  end
end
