"""Observers of a semaphore: crawl stats, metrics for Prometheus, and a log of long waits."""
