"""What a process tells about itself: stats, metrics, and why requests wait for long."""
