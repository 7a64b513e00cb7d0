"""The connection to one Redis server, and its scripts. Independent of permits."""
