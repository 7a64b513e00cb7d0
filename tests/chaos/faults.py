"""All faults by name, in the order of the table."""

from tests.chaos import network_faults, node_faults, server_faults
from tests.chaos.fault import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "network_faults", "node_faults", "server_faults"]
