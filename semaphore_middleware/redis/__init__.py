"""The server: where it is, how to speak to it, and how to notice that it has lost data."""
