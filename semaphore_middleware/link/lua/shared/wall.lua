-- The server's wall clock, in milliseconds, for all scripts that need the time.

local HOUR, DAY = 3600000, 86400000
local time = redis.call('TIME')
local WALL = time[1] * 1000 + math.floor(time[2] / 1000)
