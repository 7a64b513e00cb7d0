"""Faults of hosts, the network and the server, in both worlds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lab.simulation.network import CALM, Network, Weather
from lab.simulation.plan import Fault
from lab.simulation.world import Host

End = Callable[[], object]
OF_LINKS = ("cut", "cut out", "cut back", "break")
OF_HOSTS = ("freeze", "block", *OF_LINKS)
MOST_COPIES = 9  # of the server's data


@dataclass
class Misfortune:
    """Faults of hosts, of their links and of the server. In each lease so many `copies` of its data
    are made.
    """

    network: Network
    copies: int
    losses_at: list[float] = field(default_factory=list)
    """When the server has lost data, or may have."""
    jumps_at: list[float] = field(default_factory=list)
    """When its clock was set."""
    _copies: list[tuple[float, Any]] = field(default_factory=list)
    _cut_off: object = None

    def copy_while(self, is_needed: Callable[[], bool]) -> None:
        """Copy the data now, and regularly while more faults will come."""
        copy = self.network.world.now, self.network.server.snapshot()
        self._copies = [*self._copies[1 - MOST_COPIES :], copy]
        if is_needed():
            every = self.network.lease / self.copies
            self.network.world.after(every, partial(self.copy_while, is_needed))

    def strike_host(self, fault: Fault, host: Host) -> End | None:
        """Strike a host, or its link. Returns what ends the fault; None if it is over at once."""
        match fault.kind:
            case "freeze":
                host.freeze()
                return host.thaw
            case "block":
                host.block()
                return host.thaw
            case "break":
                self.network.break_all(host)
                return None
        self.network.cut(host, out=fault.kind != "cut back", back=fault.kind != "cut out")
        return partial(self.network.mend, host)

    def strike(self, fault: Fault) -> End | None:
        """Strike all, or the server. Returns what ends the fault; None if it is over at once."""
        network, server = self.network, self.network.server
        match fault.kind:
            case "weather":
                network.weather = Weather(**fault.of)
                return partial(setattr, network, "weather", CALM)
            case "server stands":
                network.freeze_server(fault.seconds)
            case "restart" | "server away":
                if fault.kind == "restart":
                    self._begin_incarnation(self._data_for(fault.of))
                network.is_server_down = True
                network.break_all()
                return partial(setattr, network, "is_server_down", False)
            case "flush":
                self.note_loss()
                server.flush()
            case "evict":
                self.note_loss()
                server.evict(fault.of)
            case "replica":  # which lacks the last calls takes over; a proxy may hide it
                is_hidden = fault.node % 2 == 1
                take_over = partial(self._take_over, fault.of, is_hidden)
                if is_hidden and not server.gives_scripts_info:
                    server.after_info = take_over  # then the reply to INFO is of another server
                    return lambda: server.after_info and take_over()
                take_over()
            case "split brain":
                return self._cut_off_master(self._copy_of(network.world.now - fault.of))
            case "jump":
                self.jumps_at.append(network.world.now)
                server.clock_ahead_ms += 1000 * fault.of
            case "scripts gone":
                server.forget_scripts()
            case "full":
                server.set_full(True)
                return partial(server.set_full, False)
            case kind:
                raise ValueError(kind)
        return None

    def _take_over(self, lag: float, is_hidden: bool) -> None:
        network = self.network
        network.server.after_info = None
        self._begin_incarnation(self._copy_of(network.world.now - lag))
        network.move_all() if is_hidden else network.break_all()

    def _cut_off_master(self, data: Any) -> End:
        """It takes no more writes, until a replica with these data takes over, unless another has.
        Of two such faults at a time the later one counts.
        """
        cut_off = self._cut_off = object()
        self.network.server.set_lacking_replicas(True)
        losses = len(self.losses_at)

        def take_over() -> None:
            if self._cut_off is not cut_off:
                return
            self.network.server.set_lacking_replicas(False)
            if len(self.losses_at) == losses:
                self._begin_incarnation(data)
                self.network.break_all()

        return take_over

    def note_loss(self) -> None:
        self.losses_at.append(self.network.world.now)

    def _begin_incarnation(self, data: Any) -> None:
        self.note_loss()
        self.network.server.begin_incarnation(data)

    def _data_for(self, kind: str) -> Any:
        match kind:
            case "empty":
                return None
            case "with its data":
                return self.network.server.snapshot()
            case "from a snapshot":
                return self._copy_of(self.network.world.now)
        raise ValueError(kind)

    def _copy_of(self, at: float) -> Any:
        """The data as they were then, or a little earlier; None if no such copy exists."""
        found = [copy for taken_at, copy in self._copies if taken_at <= at]
        return found[-1] if found else None
