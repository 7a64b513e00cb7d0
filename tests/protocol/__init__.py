"""A model of the protocol between nodes and server, and a search through all of its states.

`rules` has the rules, each with a switch; `scenario` the worlds in which they are to hold; `state`
all that a state consists of; `protocol` the steps from one to the next; `search` follows them, and
`drains` runs a state to its end. `runs` is the table of searches; `python -m tests.protocol` prints
it. Two small models stand beside: `grant_order` (whose turn it is) and `scope_order` (the order in
which a request takes its scopes).
"""
