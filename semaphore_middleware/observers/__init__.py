"""Observers of a semaphore: crawl stats, and OpenTelemetry spans of waits."""
