-- End the crawl for all nodes, done or not.
-- KEYS: see shared/common.lua.
-- ARGV: none of its own.
-- Reply: nothing.
end_run()
return {}
