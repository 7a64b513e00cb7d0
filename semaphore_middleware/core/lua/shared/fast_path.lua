-- Part of `sync`: answers most statements without making a table: a node takes permits that are free, or
-- gives some back, or reports a start, where nobody waits and only their number and a delay are limited.
-- `slow_path` would write and reply the same. Returns nil, and has done nothing, for all other statements.
-- It assumes, and the line that returns nil sees to it:
-- - no rules, no recovery, no feedback, nothing learned (`is_plain` in sync.lua)
-- - no part of a limit but the concurrency and the delay holds starts back, of this node or of others
-- - the scope is in use, or new, by nodes of one job, this node's
-- - nobody waits, no account may be over, and nobody knows a time to ask again
-- - the limit does not change
-- - the account goes on under its term, in order, without claims; or is new, and without claims
-- - all that is asked for is free, and due

local function fast_path(key, state, own, @said_(statement))
  if math.max(said_resting, @said_(rest)) > 0 then return nil end
  local @(state)
  if state then
    @(state) = cmsgpack.unpack(state)
    check_read(idle_since)
    if job ~= JOB or idle_since > 0 then return nil end
    if waiting + resting > 0 or told ~= '' or NOW >= due then return nil end
    if said_concurrency < concurrency or math.max(@(rest)) > 0 then return nil end
    if said_delay ~= delay or said_jitter ~= jitter then return nil end
  else
    @(state) = @zeros(state)
    @(limit) = @said_(limit)
    job = JOB
  end

  local @own_(account)
  if own then
    @own_(account) = cmsgpack.unpack(own)
    check_read(own_burst)
    if own_failures > 0 or said_term ~= own_term then return nil end
    if said_seq < own_seq or said_believed > own_granted then return nil end
  elseif said_believed > said_returned then
    return nil
  else
    own_granted, own_returned, own_started, own_pending = said_believed, said_believed, said_started, 0
    own_failures, own_ended_at = 0, 0
    own_served = tick + 1
    tick = own_served
  end
  local before, wanted = own_granted - own_returned, math.max(0, said_asked - own_granted)
  if said_returned > own_returned then own_ended_at = NOW end
  own_returned = math.max(own_returned, said_returned)
  held = held - before + own_granted - own_returned + wanted
  if wanted > 0 and held > concurrency then return nil end

  local begun = math.max(0, said_started - own_started)
  if begun > 0 then
    own_started, started = own_started + begun, started + begun
    local begun_at = math.min(NOW, math.max(NOW - 1000 * said_start_age, granted_at))
    last_start, chance = math.min(NOW, math.max(last_start, begun_at)), 2 * RANDOM - 1
    next_at_rate = math.max(next_at_rate, begun_at)
  end
  pending = pending - own_pending
  own_pending = math.min(own_granted - own_returned, said_pending + own_granted - said_believed)
  pending = pending + own_pending
  if wanted > 0 then
    local earliest = last_start + delay * (1 + jitter * chance)
    if delay > 0 and (wanted + pending > 1 or NOW < earliest) then return nil end
    own_pending, pending = own_pending + wanted, pending + wanted
    tick = tick + (own and 2 or 1) -- it began to wait, and was served
    own_granted, own_served, granted_at = own_granted + wanted, tick, NOW
  end
  local is_closed = own_granted == own_returned -- an account with nothing in it
  own_lease_end = NOW + LEASE
  due = math.min(due, own_lease_end, is_closed and NOW + LOOSENING or math.huge)

  local is_ending = held > 0 and expires < WALL + KEPT / 2
  if is_ending then expires = WALL + KEPT end
  local is_unlisted = held > 0 and listed < WALL + LISTED / 2
  if is_unlisted then listed = WALL + LISTED end
  if held == 0 then
    if state then redis.call('DEL', key) end
    local kept = delay > 0 and math.max(0, last_start + delay * (1 + jitter) - NOW) or 0
    if kept > 0 then -- the next start depends on the last one: see `write_idle`
      kept = kept + math.min(kept, HOUR)
      if listed < WALL + kept then
        listed = WALL + kept
        list(key, listed)
      end
      last_start, next_at_rate = last_start - NOW, next_at_rate - NOW
      idle_since, tick, started, due, expires = NOW + QUIET, 0, 0, math.huge, 0
      redis.call('HSET', key, 'state', cmsgpack.pack(@(state)))
      redis.call('PEXPIRE', key, math.ceil(kept))
    end
  elseif is_closed then
    redis.call('HSET', key, 'state', cmsgpack.pack(@(state)))
    if own then redis.call('HDEL', key, OWN) end
  else
    own_term, own_seq, own_asked, own_resting = said_term, said_seq, said_asked, 0
    own_held_since, own_waiting_since = NOW - 1000 * said_held_age, NOW - 1000 * said_wait_age
    @own_(limit) = @said_(limit)
    own_job = JOB
    redis.call('HSET', key, 'state', cmsgpack.pack(@(state)), OWN, cmsgpack.pack(@own_(account)))
  end
  if is_ending then redis.call('PEXPIREAT', key, expires) end
  if is_unlisted then list(key, listed) end

  local @reply_(reply) = @zeros(reply) -- 0 is the status ok
  reply_term, reply_granted, reply_limit, reply_held = said_term, own_granted, concurrency, held
  reply_available, reply_is_stricter = concurrency - held, said_concurrency > concurrency and 1 or 0
  if delay > 0 then reply_gap, reply_is_counted = delay * (1 - jitter), 1 end
  return struct.pack('@format(reply)', @reply_(reply))
end
