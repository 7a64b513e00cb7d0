"""Scrapy's own tests as a judge: they pass with the add-on as they do without."""
