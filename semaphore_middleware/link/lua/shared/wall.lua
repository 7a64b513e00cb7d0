-- Shared by all scripts that tell the time: the server's wall clock, in milliseconds.

local HOUR, DAY = 3600000, 86400000
local time = redis.call('TIME')
local WALL = time[1] * 1000 + math.floor(time[2] / 1000)
