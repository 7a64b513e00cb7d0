"""A state of the model: what server and nodes know, and what is on the way between them.

Named tuples, since a search makes millions of them. Times are ticks that are left, so that a
search over unbounded time has an end; `numbering` does the same for terms, statements and counts.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias


class Epoch(NamedTuple):
    """A stretch of time in which the server has forgotten nothing."""

    life: int  # of the server: its run, and whose data it has
    id: int


class Statement(NamedTuple):
    """A node's word on its account: what it asks for, gives back and believes to be granted."""

    epoch: Epoch
    term: int
    seq: int
    asked: int
    returned: int
    believed: int


class Begin(NamedTuple):
    """A node asks for the epoch of the life that it has looked at; there may be none yet."""

    life: int


Status: TypeAlias = Literal["ok", "lost", "old", "other epoch"]


class Reply(NamedTuple):
    """The server's answer to a statement."""

    term: int
    status: Status
    granted: int = 0


class Begun(NamedTuple):
    """The server's answer to Begin."""

    epoch: Epoch


class Notification(NamedTuple):
    """What a node's channel says: granted so far in this term."""

    term: int
    granted: int


class LateReply(NamedTuple):
    """A reply whose call the node has given up; heard all the same."""

    term: int
    granted: int
    age: int  # of the call, in ticks


class Call(NamedTuple):
    """The one call that a node has under way, with its message: the question, then the answer."""

    message: Statement | Begin | Reply | Begun
    asked: int = 0
    returned: int = 0
    age: int = 0  # ticks since it was sent


class Node(NamedTuple):
    """What a node knows of its account, and what its requests do."""

    term: int = 0
    seq: int = 0  # of the last statement
    returned: int = 0
    granted: int = 0  # as heard
    running: int = 0  # transfers, each under a permit
    closing: int = 0  # transfers that were told to end and have not yet
    waiting: int = 0  # requests
    deadline: int | None = None  # ticks left; None: nothing was said in this term
    life: int = 0  # of the server, looked at when the link was made
    epoch: Epoch | None = Epoch(0, 0)  # None: the server has said that it is another
    frozen: bool = False
    unused: int = 0  # permits given back unused; counted only where `asked` is a plain counter

    @property
    def in_hand(self) -> int:
        """Permits that no transfer uses."""
        return self.granted - self.returned - self.running


class Account(NamedTuple):
    """What the server knows of a node."""

    term: int
    seq: int
    asked: int
    returned: int
    granted: int
    lease: int  # ticks left


class Member(NamedTuple):
    """One node, its account on the server, and the messages between them."""

    node: Node = Node()
    account: Account | None = None
    replica: Account | None = None  # the account as a lagging replica knows it
    call: Call | None = None
    stale: tuple[Statement | Begin, ...] = ()  # given up or repeated, and still able to arrive
    notifications: tuple[Notification, ...] = ()  # may be heard any number of times, or never
    late: LateReply | None = None
    calm: bool = False  # its calls take no time, and nothing of it is lost, late or frozen


class Replica(NamedTuple):
    """The server's data apart from the accounts, as a lagging replica knows them."""

    epoch: Epoch | None
    wait: int
    unseen: int


class Server(NamedTuple):
    """What the server knows apart from the accounts, and what may still befall it."""

    life: int
    epoch: Epoch | None
    wait: int  # ticks left of the recovery wait
    unseen: int  # ticks of its clock since the last call; BACKWARDS: it was set back
    next_epoch: int
    replica: Replica | None
    jumps: int  # faults that may still happen
    restarts: int
    flushes: int
    freezes: int


BACKWARDS = -1


class State(NamedTuple):
    """All of it."""

    server: Server
    members: tuple[Member, ...]


Step: TypeAlias = tuple[str, Member]
