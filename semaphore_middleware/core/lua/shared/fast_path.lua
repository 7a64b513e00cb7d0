-- Part of `sync`: serves the usual update without making a table. A node takes permits that are free, gives
-- some back, or reports a start, while nobody waits and only concurrency and delay are limited.
--
-- A single permit costs the server 1.7 to 2.3 times less than by `slow_path`: `make bench-server` measures
-- it, and fails below 1.3. `slow_path` must write and reply exactly the same: lab/simulation compares both.
--
-- Every field of these records is a local variable of this function:
--     state      held, waiting, last_start, ...                the scope
--     entry      own_granted, own_returned, ...                this node's entry there
--     update     update_requested, update_granted_ack, ...     what the node sends
--     reply      reply_granted, reply_limit, ...               the answer
--
-- Returns nil, and has changed nothing, for an update that it cannot serve. The caller has checked that there
-- are no rules, no recovery, no feedback, and nothing learned (`is_plain` in sync.lua).

local function fast_path(key, packed_state, packed_own, @update_(update))

  -- 1. The scope is new, or in use by nodes of this job alone, with the limit that this node asks for
  if update_suspended > 0 then return nil end -- the node waits for a pause of its own
  if math.max(@update_(rest)) > 0 then return nil end -- it asks for a rate, or for an adaptive limit
  local @(state)
  if packed_state then
    @(state) = cmsgpack.unpack(packed_state)
    check_read(idle_since)
    if idle_since > 0 then return nil end -- its times are relative to the start of the idle time
    if job ~= JOB then return nil end -- several jobs share it
    if waiting + suspended > 0 then return nil end -- another node may be first in the queue
    if notified ~= '' then return nil end -- a node was notified of when to ask again
    if NOW >= due then return nil end -- a lease may be over
    if math.max(@(rest)) > 0 then return nil end -- a rate, or an adaptive limit, is effective
    if update_concurrency < concurrency then return nil end -- the limit becomes stricter
    if update_delay ~= delay or update_jitter ~= jitter then return nil end
  else
    @(state) = @zeros(state)
    @(limit) = @update_(limit)
    job = JOB
  end

  -- 2. The entry is known, and goes on in order; or it is new, and claims nothing
  local @own_(entry)
  if packed_own then
    @own_(entry) = cmsgpack.unpack(packed_own)
    check_read(own_burst)
    if update_lease_id ~= own_lease_id then return nil end -- another lease than the known one
    if update_seq < own_seq then return nil end -- a late update
    if update_granted_ack > own_granted then return nil end -- it claims what was not granted
    if own_failures > 0 then return nil end
  else
    if update_granted_ack > update_returned then return nil end -- it claims permits of a lost lease
    own_granted, own_returned, own_started = update_granted_ack, update_granted_ack, update_started
    own_unstarted, own_failures, own_ended_at = 0, 0, 0
    tick = tick + 1
    own_served = tick -- a newcomer counts as served now: see `open_entry`
  end

  -- 3. What it gives back, and what it asks for
  local held_before = own_granted - own_returned
  if update_returned > own_returned then
    own_returned = update_returned
    own_ended_at = NOW
  end
  local wanted = math.max(0, update_requested - own_granted)
  held = held - held_before + own_granted - own_returned + wanted
  if wanted > 0 and held > concurrency then return nil end -- it has to wait

  -- 4. What has started
  local begun = math.max(0, update_started - own_started)
  if begun > 0 then
    own_started = own_started + begun
    started = started + begun
    local begun_at = math.min(NOW, math.max(NOW - 1000 * update_start_age, granted_at))
    last_start = math.min(NOW, math.max(last_start, begun_at))
    chance = 2 * RANDOM - 1
    next_at_rate = math.max(next_at_rate, begun_at)
  end
  local unstarted_here = math.min(own_granted - own_returned,
    update_unstarted + own_granted - update_granted_ack)
  unstarted = unstarted - own_unstarted + unstarted_here
  own_unstarted = unstarted_here

  -- 5. The grant: all that it asks for, if a start is due
  if wanted > 0 then
    local earliest = last_start + delay * (1 + jitter * chance)
    if delay > 0 and (NOW < earliest or wanted + unstarted > 1) then return nil end -- it has to wait
    tick = tick + (packed_own and 2 or 1) -- it began to wait, and was served
    own_served = tick
    own_granted = own_granted + wanted
    own_unstarted = own_unstarted + wanted
    unstarted = unstarted + wanted
    granted_at = NOW
  end

  -- 6. Writes. An entry with nothing in it is closed, a scope without entries is idle
  local is_closed = own_granted == own_returned
  own_lease_end = NOW + LEASE
  due = math.min(due, own_lease_end)
  if is_closed then due = math.min(due, NOW + LOOSENING) end -- the limit may have been this node's
  local is_ending = held > 0 and expires < WALL + KEPT / 2
  if is_ending then expires = WALL + KEPT end
  local is_unlisted = held > 0 and listed < WALL + LISTED / 2
  if is_unlisted then listed = WALL + LISTED end
  if held == 0 then
    if packed_state then redis.call('DEL', key) end
    local kept = delay > 0 and math.max(0, last_start + delay * (1 + jitter) - NOW) or 0
    if kept > 0 then -- the next start depends on the last one: see `write_idle`
      kept = kept + math.min(kept, HOUR)
      if listed < WALL + kept then
        listed = WALL + kept
        list(key, listed)
      end
      last_start = last_start - NOW
      next_at_rate = next_at_rate - NOW
      idle_since = NOW + QUIET
      tick, started, due, expires = 0, 0, math.huge, 0
      redis.call('HSET', key, 'state', cmsgpack.pack(@(state)))
      redis.call('PEXPIRE', key, math.ceil(kept))
    end
  elseif is_closed then
    redis.call('HSET', key, 'state', cmsgpack.pack(@(state)))
    if packed_own then redis.call('HDEL', key, OWN) end
  else
    own_lease_id, own_seq = update_lease_id, update_seq
    own_requested, own_suspended = update_requested, 0
    own_held_since = NOW - 1000 * update_held_age
    own_waiting_since = NOW - 1000 * update_wait_age
    @own_(limit) = @update_(limit)
    own_job = JOB
    redis.call('HSET', key, 'state', cmsgpack.pack(@(state)), OWN, cmsgpack.pack(@own_(entry)))
  end
  if is_ending then redis.call('PEXPIREAT', key, expires) end
  if is_unlisted then list(key, listed) end

  -- 7. Replies
  local @reply_(reply) = @zeros(reply) -- the status 0 is `ok`
  reply_lease_id = update_lease_id
  reply_granted = own_granted
  reply_limit = concurrency
  reply_held = held
  reply_available = concurrency - held
  if update_concurrency > concurrency then reply_is_stricter = 1 end
  if delay > 0 then
    reply_interval = delay * (1 - jitter)
    reply_least_interval = reply_interval
    reply_starts_count = 1
  end
  return struct.pack('@format(reply)@format(findings)', @reply_(reply), @zeros(findings))
end
