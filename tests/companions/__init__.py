"""Packages that are used beside this one, each in a real crawl."""
