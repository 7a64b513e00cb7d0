-- The node takes part no more. Those who rest are told to look whether that was all.
-- ARGV: ids that the node has finished. What else it has in hand goes back.
-- Reply: none.
local first_done = 4

finish_all_from(first_done)
stop(node)
tell_the_resting()
redis.call("SREM", nodes, node)
redis.call("PUBLISH", news, "left")
