-- What the judge sees of the server: when permits are granted, and how many failures were counted.

STEP = 0 -- the clock's longest step, ms
NOTE_GRANT = nil -- function(key, node, term, first, last): these permits of the term were granted
FAILURES = {} -- key -> requests without response that were counted there
IN_A_ROW = {} -- key -> how many of them came one after the other
OPENED_LATE = {} -- key -> accounts that a late statement has opened anew
LATEST = {} -- key and node -> the term and the number of the latest statement

FAILED_AT = 0 -- the place in "learned" of the number of requests without response, in a row; 0: it has none

local TERM, SEQ, GRANTED, RETURNED = 1, 2, 4, 5 -- as entries.lua packs them

-- Then nothing is granted, and what nodes claim to hold is believed. As clock.lua counts.
local function is_recovering(key)
  local epoch = DB[string.match(key, '^(.-):scope:') .. ':epoch'].h
  local advance = math.max(0, math.floor(WALL) - tonumber(epoch.wall))
  return tonumber(epoch.clock) + math.min(advance, STEP) < tonumber(epoch.from)
end

local function note_opening(key, node, new, old)
  local latest = LATEST[key .. node]
  local is_late = latest and (latest[TERM] > new[TERM] or latest[TERM] == new[TERM] and latest[SEQ] >= new[SEQ])
  if not old and is_late then
    OPENED_LATE[key] = (OPENED_LATE[key] or 0) + 1
  end
  if not is_late then LATEST[key .. node] = new end
end

function WITNESS(key, field, new, old)
  local node = string.match(field, '^node:(.*)$')
  if node then
    note_opening(key, node, new, old)
    local is_same = old and old[TERM] == new[TERM]
    local before = is_same and old[GRANTED] or new[RETURNED]
    if new[GRANTED] > before and not is_recovering(key) then NOTE_GRANT(key, node, new[TERM], before + 1, new[GRANTED]) end
  elseif field == 'learned' then
    local count = new[FAILED_AT] or 0
    FAILURES[key] = (FAILURES[key] or 0) + math.max(0, count - (IN_A_ROW[key] or 0))
    IN_A_ROW[key] = count
  end
end
