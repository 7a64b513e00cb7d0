"""Times within a lease, as shares of its length."""

# RENEWAL: a node renews its leases so often.
# STEP: the epoch's clock follows the server's wall clock by at most this much in one call.
# GRACE: a node ends what it could not renew, so long after the last renewal that went well.
# TURN: a node keeps a permit for one request after another, for so long at most.
#
# RENEWAL < STEP: the clock keeps pace with time.
# RENEWAL + STEP + RENEWAL < 1: when the clock is one step ahead, a living node has time to renew.
# GRACE < 1 - STEP: a node ends its requests before such a clock can end their leases.
# TURN <= RENEWAL: no turn outlasts the time between two renewals.
RENEWAL = 0.3
STEP = 0.32
GRACE = 0.65
TURN = 0.3

LONGEST_LEASE_S = 86400.0  # the server keeps what nobody renews for half a day at least
