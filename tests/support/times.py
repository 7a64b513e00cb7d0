"""How long tests wait."""

TIMEOUT_S = 300.0
"""After that a test has failed. A shorter time would gain nothing, as no test that passes waits for
it."""

ENDLESS_S = 2 * TIMEOUT_S
"""A lease, a pause or another wait of the product's that no test lives to see the end of."""
