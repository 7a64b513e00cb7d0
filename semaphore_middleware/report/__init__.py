"""The history of requests to each site: its writer (an observer), and reports."""
