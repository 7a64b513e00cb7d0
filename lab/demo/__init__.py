"""A crawl by several nodes on this machine: run, watched and judged."""
