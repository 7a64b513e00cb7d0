"""The commands of `scrapy` inside this project."""
