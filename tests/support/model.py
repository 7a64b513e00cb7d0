"""What the scripts should do, in plain Python: nobody's clock, no leases, no keys.

One permit after another goes to the node that holds the fewest, and among those to the one that was
served longest ago.
"""

from __future__ import annotations

from dataclasses import dataclass

from semaphore_middleware.redis.protocol import Status

Message = tuple[str, ...]  # to whom, "granted" with term and count, "retry" or "backoff"


@dataclass(frozen=True)
class Said:
    """A statement, without what the model does not know of."""

    term: int
    seq: int
    asked: int
    returned: int
    believed: int
    limit: int
    is_refusal: bool
    """Whether the site has refused a request whose permit this gives back."""


@dataclass(frozen=True)
class Heard:
    """A reply, without how long things take."""

    status: Status
    term: int
    granted: int
    available: int
    limit: int
    is_counted: bool
    retries: bool
    begins_backoff: bool


@dataclass
class Account:
    """What the model knows of one node's account with the scope."""

    term: int
    seq: int
    asked: int
    granted: int
    returned: int
    served: int
    is_over: bool = False

    @property
    def held(self) -> int:
        return self.granted - self.returned

    @property
    def waiting(self) -> int:
        return max(0, self.asked - self.granted)


class Model:
    """One scope."""

    def __init__(self) -> None:
        self.recovering = False
        self._forget_all()

    def _forget_all(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.rule: int | None = None  # what an operator has set
        self.paused = False
        self.backoff = False  # the site has refused a request
        self._tick = 0
        self._agreed: int | None = None
        self._told: str | None = None
        self._forget_if_idle()

    def _forget_if_idle(self) -> None:
        if not self.held and not self.waiting:
            self._agreed = self._told = None

    # See ----------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        return sum(account.held for account in self.accounts.values())

    @property
    def waiting(self) -> int:
        return sum(account.waiting for account in self.accounts.values())

    @property
    def in_force(self) -> int:
        return self.rule or self._agreed or 0

    @property
    def forbids(self) -> bool:
        """Whether nothing may start, however many permits are free."""
        return self.recovering or self.paused or self.backoff

    @property
    def queue(self) -> list[str]:
        waiting = [node for node, account in self.accounts.items() if account.waiting]
        return sorted(waiting, key=lambda node: self._place(self.accounts[node]))

    @staticmethod
    def _place(account: Account) -> tuple[int, int]:
        return account.held, account.served

    # What nodes do ------------------------------------------------------------------------------

    def hear(self, node: str, said: Said) -> tuple[Heard, list[Message]]:
        """The reply, and who is told what."""
        before = self.accounts.get(node)
        returned = before.returned if before else 0
        status = self._bring_up_to(node, said)
        messages: list[Message] = []
        begins_backoff = False
        self._agreed = min(self._agreed or said.limit, said.limit)
        own = self.accounts.get(node)
        is_known = own is not None and own is before
        if own and is_known and said.is_refusal and status == "ok" and own.returned > returned:
            begins_backoff = not self.backoff
            self.backoff = True
            if begins_backoff:
                holders = [name for name, each in self.accounts.items() if each.held]
                messages += [(name, "backoff") for name in holders]
        granted, retries = self._promote(node)
        if own and not own.held and not own.waiting:
            del self.accounts[node]
        heard = Heard(
            status,
            own.term if own else 0,
            own.granted if own else 0,
            self.in_force - self.held - self.waiting,
            self.in_force,
            self.paused or self.backoff,
            retries,
            begins_backoff,
        )
        self._forget_if_idle()
        return heard, messages + granted

    def _bring_up_to(self, node: str, said: Said) -> Status:
        """Let the account be what the statement says."""
        account = self.accounts.get(node)
        if account and said.term < account.term:
            return "old"
        if account is None or said.term > account.term:
            self.accounts.pop(node, None)
            if said.believed > said.returned and not self.recovering:
                return "lost"
            self.accounts[node] = Account(
                said.term, said.seq, said.asked, said.believed, said.returned, self._next_tick()
            )
            return "ok"
        if said.believed > account.granted and not self.recovering:
            del self.accounts[node]
            return "lost"
        if said.seq < account.seq:
            return "ok"
        account.is_over = False
        waited = account.waiting > 0
        account.seq, account.asked = said.seq, said.asked
        account.granted = max(account.granted, said.believed)
        account.returned = max(account.returned, min(said.returned, account.granted))
        if account.waiting and not waited:
            account.served = self._next_tick()
        return "ok"

    def _promote(self, caller: str | None) -> tuple[list[Message], bool]:
        """Who is told what, and whether the reply tells the caller to come back."""
        self.accounts = {n: each for n, each in self.accounts.items() if not each.is_over}
        served: set[str] = set()
        while self.queue and not self.forbids and self.held < self.in_force:
            first = self.queue[0]
            self.accounts[first].granted += 1
            self.accounts[first].served = self._next_tick()
            served.add(first)
        messages: list[Message] = [
            (node, "granted", str(self.accounts[node].term), str(self.accounts[node].granted))
            for node in served
            if node != caller
        ]
        is_time_in_the_way = self.forbids and not self.paused and self.held < self.in_force
        if not self.queue or not is_time_in_the_way:
            self._told = None
            return messages, False
        first, told = self.queue[0], self._told
        self._told = first
        if first != caller and told != first:
            messages.append((first, "retry"))
        return messages, first == caller

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick

    # What operators, time and misfortune do -------------------------------------------------------

    def evict(self, node: str) -> list[Message]:
        if node not in self.accounts:
            return []
        del self.accounts[node]
        messages, _ = self._promote(node)
        self._forget_if_idle()
        return messages

    def end_lease(self, node: str) -> None:
        """The account is closed in the next call, unless that is its node's."""
        if node in self.accounts:
            self.accounts[node].is_over = True

    def lose_all(self) -> None:
        self._forget_all()
        self.recovering = True
