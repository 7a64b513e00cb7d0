"""What operators see and set."""
