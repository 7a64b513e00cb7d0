"""The history of requests to each site: its writer (an observer), reports, and their check."""
