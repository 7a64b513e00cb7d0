"""The Lua files; `scripts.py` says which make which script."""
