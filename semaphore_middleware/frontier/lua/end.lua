-- End the crawl for all, done or not.
-- ARGV: none.
-- Reply: none.
end_run()
