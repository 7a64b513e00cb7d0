"""The operators' commands and their page."""
