-- Put in front of every script: a bucket's clock, and what identifies a run of the server.
-- KEYS: none of its own. ARGV: none of its own.
-- Leases and starts are timed by a clock that each bucket keeps in its epoch. It follows the server's
-- wall clock by at most `step` in one call, and does not go back (except by less than an eighth of a
-- step, which is not written down). Nodes renew more often than that, so a wall clock that is set an
-- hour ahead ends no lease of a node that is alive. Every time is in milliseconds.

local time = redis.call('TIME')
local WALL = time[1] * 1000 + math.floor(time[2] / 1000)

local function bucket_clock(wall, clock, step)
  return clock + math.max(0, math.min(WALL - wall, step))
end

-- A server that has evicted keys counts as another run.
local function life_of(run_id, evicts)
  if evicts ~= '1' then return run_id end
  local evicted = string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)')
  return run_id .. ' without ' .. evicted .. ' keys'
end
