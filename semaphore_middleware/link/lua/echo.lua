-- Publishes a message to the caller's own channel, as other scripts do: who receives it receives theirs, too.
-- KEYS: the channel.

redis.call('PUBLISH', KEYS[1], 'echo')
