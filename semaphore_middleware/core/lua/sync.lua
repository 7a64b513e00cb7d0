-- Applies one node's updates of its leases, and returns what it is granted. A call may be repeated, late or
-- overtaken by another one.
-- KEYS: epoch, rules, index; then for each scope: scope, queue.
-- ARGV: see `clock`; the node; the epoch's id; the node's job; then for each scope the record
--       `update`, and after it `feedback`, if there is any.
-- Reply: "epoch" if the id is not the present one: nothing was done. Otherwise for each scope the
--        records `reply` and `findings` and, as text, what is wrong with the scope's keys, if anything; then
--        the server's wall clock (ms).
-- Redis creates every function anew in each call, which costs more than running most of them; rarely used
-- ones are nested in `prepare`.

@include(shared/common)

local UPDATE_BYTES = @bytes(update)
local MOST = 10 ^ 12 -- the largest number in an update; as milliseconds 31 years
local JOB = ARGV[4]
local HAS_RULES = rules and rules ~= '0'

-- Whether an update is possible: no number is broken or too large, and no two contradict each other.
local function makes_sense(@(update))
  local fractions = lease_id % 1 + seq % 1 + requested % 1 + returned % 1 + granted_ack % 1 + started % 1
    + unstarted % 1
    + suspended % 1
  return fractions == 0 -- NaN if one of them is
    and lease_id >= 1 and seq >= 1 and returned >= 0
    and unstarted >= 0 and unstarted <= granted_ack - returned
    and returned <= granted_ack and granted_ack <= requested and started >= 0
    and suspended >= 0 and start_age >= 0 and held_age >= 0 and wait_age >= 0
    and math.max(lease_id, seq, requested, started, suspended) <= MOST
    and @sense(limit)
end

local function pack_refusal(status, problem)
  local @reply_(reply) = @zeros(reply)
  reply_status = status
  return struct.pack('@format(reply)@format(findings)', @reply_(reply), @zeros(findings)) .. problem
end

@include(shared/fast_path)

local slow_path -- made by `prepare`, when it is first needed

local function prepare()
  @include(shared/promote)
  @include(shared/slow_path)
end

-- Answers one update.
local function serve(key, queue, text)
  if #text < UPDATE_BYTES then return pack_refusal(@status(refused), '') end
  local @update_(update) = struct.unpack('@format(update)', text)
  if not makes_sense(@update_(update)) then return pack_refusal(@status(refused), '') end
  local state, own, learned = unpack(redis.call('HMGET', key, 'state', OWN, 'learned'))
  local is_plain = #text == UPDATE_BYTES and not learned and not HAS_RULES and NOW >= FROM
  local reply = is_plain and fast_path(key, state, own, @update_(update))
  if reply then return reply end
  if not slow_path then prepare() end
  return slow_path(key, queue, text, state, own, learned)
end

local has_evicted = EPOCH == ARGV[3] and evicted ~= '-1' -- rule 2: eviction
  and string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)') ~= evicted
if EPOCH ~= ARGV[3] or has_evicted then return { 'epoch' } end -- rule 1: another epoch
if IS_CLOCK_LATE then write_clock() end
local replies = {}
for i = 4, #KEYS, 2 do
  local is_served, reply = pcall(serve, KEYS[i], KEYS[i + 1], ARGV[i / 2 + 3])
  replies[i / 2 - 1] = is_served and reply or pack_refusal(@status(unreadable), problem_of(reply))
end
table.insert(replies, WALL)
return replies
