"""Times within a lease, as shares of its length."""

RENEWAL = 0.3  # a node renews its leases this often
STEP = 0.32  # the epoch's clock follows the server's wall clock by at most this much in one call
# rule 16: before the lease's end
GRACE = 0.65  # a node ends its transfers this long after its last successful renewal
# What must hold:
# RENEWAL < STEP: the clock keeps pace with time.
# RENEWAL + STEP + RENEWAL < 1: when the clock is one step ahead, a living node has time to renew.
# GRACE < 1 - STEP: a node ends its requests before such a clock can end their leases.

LONGEST_CALL_S = 5.0
LONGEST_LEASE_S = 86400.0  # keys without a renewal live for half a day at least


def call_timeout(lease: float) -> float:
    """The time limit of a call, in seconds. A lease has time for several."""
    return min(LONGEST_CALL_S, lease / 6)
