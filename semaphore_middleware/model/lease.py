"""Times within a lease, as shares of it."""

# Shares of a lease. Renewals come more often than the server's clock may step in a call (STEP), so
# that it keeps pace with time, and a step too far still leaves the living time to renew:
# RENEWAL < STEP, and RENEWAL + STEP + RENEWAL < 1. And a node ends what it could not renew (GRACE)
# before such a clock, one step ahead, can think the lease over: GRACE < 1 - STEP.
RENEWAL = 0.3
STEP = 0.32
GRACE = 0.65
