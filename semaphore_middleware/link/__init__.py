"""One Redis server: how it is found, kept and lost; its scripts. Knows nothing of permits."""
