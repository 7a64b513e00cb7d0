-- Publishes a message to the caller's own channel: a node that receives it receives other scripts', too.
-- KEYS: the channel.

redis.call('PUBLISH', KEYS[1], 'echo')
