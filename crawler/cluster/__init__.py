"""A crawl by several nodes on this machine: started, watched, and judged."""
