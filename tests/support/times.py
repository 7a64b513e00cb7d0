"""How long tests wait."""

TIMEOUT_S = 300.0
"""After that a test has failed: nothing is gained by less, since it never shows a success."""

ENDLESS_S = 2 * TIMEOUT_S
"""A lease, a pause or another wait of the product's that no test lives to see the end of."""
