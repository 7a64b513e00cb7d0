"""`scrapy semaphore`: see what the semaphores do, and steer them, from a terminal."""
