"""The server: its location, the protocol, and the detection of lost data."""
