"""`scrapy semaphore`: see and change limits from a terminal."""
