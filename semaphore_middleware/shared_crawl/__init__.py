"""A scheduler with which many nodes share one crawl. It does not depend on permits."""
