"""Mutants: the package with one small mistake, made by rules. `make mutants` counts who sees them.

generate.py    which files have which mutants, and how they are called
in_python.py   the rules for Python, by its syntax tree
in_lua.py      the rules for Lua, line by line
run.py         tries mutants, in copies of the tree: the simulation first, then the nearest tests
__main__.py    `make mutants`
"""
