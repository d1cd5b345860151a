"""The nodes meet in a key-value store that node 0 serves: each says how it is, and follows node 0's orders.

came/I      name and seconds left, when a node has reached the store
ask/I       it asks for node 0's clock; clock/I is the answer
facts/I     what it found out about itself
order/K     {"round": R, "seconds": S, "out": [nodes]}, or at the end {"verdict": …}
result/R/I  GB/s, or what went wrong
bye/I       it has read the verdict
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.health import forked_call
from orchestrator.runtime.health.node_check import check_node
from orchestrator.runtime.health.node_pairs import exchange, rounds_of
from orchestrator.runtime.health.verdict import Facts, Limits, Pair, Verdict, blamed, node_faults, pair_faults

_POLL_SECONDS = 0.02
_RETRY_SECONDS = 0.2
_TO_COME = 0.5
"""Share of the whole time in which every node must have come and looked at itself; it looks for half of that."""
_TO_REACH = 0.9
"""Share of the whole time in which node 0 must answer."""
_SHORTEST_EXCHANGE_SECONDS = 1.0
_LATE_SECONDS = 3.0
"""How much later than an exchange may take its result may arrive."""
_FAREWELL_SECONDS = 2.0


@dataclass(frozen=True)
class Meeting:
    """Who meets where. `names` by rank; `seconds`: for the whole check; `pair_seconds`: the most for one all-reduce."""

    address: str
    port: int
    rank: int
    names: list[str]
    seconds: float
    pair_seconds: float

    def join(self, seconds: float) -> Store:
        """The store, from any process of any node. Raises ConnectionError when node 0 does not answer in time, and
        RuntimeError (DistError) when it was removed again.
        """
        self._wait_for_listener(seconds)
        timeout = timedelta(seconds=max(1.0, seconds))
        return TCPStore(self.address, self.port, is_master=False, timeout=timeout, wait_for_workers=False)

    def serve(self) -> Store:
        """The store itself, on node 0. Raises RuntimeError (DistError) when the port is taken."""
        return TCPStore(self.address, self.port, is_master=True, wait_for_workers=False)

    def _wait_for_listener(self, seconds: float) -> None:
        """The store's own way to try again waits longer each time, and ends late."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection((self.address, self.port), timeout=seconds).close()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ConnectionError(f"{error.strerror or error} for {seconds:.0f} s") from error
            time.sleep(_RETRY_SECONDS)


def participate(meeting: Meeting, run: RunDir, limits: Limits) -> dict[str, Any]:
    """One node's part, up to the verdict, which is returned. Raises what `Meeting.join` does."""
    deadline = time.monotonic() + meeting.seconds
    rank, name = meeting.rank, meeting.names[meeting.rank]
    store = meeting.join(meeting.seconds * _TO_REACH)
    store.set(f"came/{rank}", json.dumps({"name": name, "seconds": deadline - time.monotonic()}))
    asked = time.time()
    store.set(f"ask/{rank}", "")
    right = float(store.get(f"clock/{rank}"))
    answered = time.time()
    facts = check_node(run, name, limits, meeting.seconds * _TO_COME / 2)
    clock = {"clock_offset": (asked + answered) / 2 - right, "clock_error": (answered - asked) / 2}
    store.set(f"facts/{rank}", json.dumps({**asdict(facts), **clock}))
    number = 0
    while True:
        order = json.loads(store.get(f"order/{number}"))
        if "verdict" in order:
            store.set(f"bye/{rank}", "")
            return dict(order["verdict"])
        pair = next((pair for pair in rounds_of(len(meeting.names))[order["round"]] if rank in pair), None)
        if pair is not None and not set(pair) & set(order["out"]):
            said = _exchange(meeting, pair, order["round"], order["seconds"])
            store.set(f"result/{order['round']}/{rank}", json.dumps(said))
        number += 1


def _exchange(meeting: Meeting, pair: tuple[int, int], number: int, seconds: float) -> dict[str, Any]:
    """This node's side of an all-reduce, in a process that can be given up."""

    def meet() -> float:
        store = PrefixStore(f"pair/{number}/{pair[0]}", meeting.join(seconds))
        return exchange(store, pair.index(meeting.rank), number, seconds)

    try:
        return {"gigabytes_per_second": forked_call.call(meet, seconds), "message": ""}
    except (TimeoutError, forked_call.CallFailedError) as error:
        return {"gigabytes_per_second": None, "message": str(error)}


@dataclass
class Coordinator:
    """Node 0's other part: it collects what the nodes say, gives the orders and judges."""

    meeting: Meeting
    limits: Limits
    store: Store
    deadline: float
    names: list[str]
    came: set[int] = field(default_factory=set)
    pairs: list[Pair] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)
    orders: int = 0

    @classmethod
    def of(cls, meeting: Meeting, limits: Limits) -> Coordinator:
        """Opens the store. Raises RuntimeError (DistError) when that is not possible."""
        return cls(meeting, limits, meeting.serve(), time.monotonic() + meeting.seconds, list(meeting.names))

    def judge(self) -> Verdict:
        """Hear every node, let them meet in pairs when all are well, and judge. Ends before the deadline."""
        facts = self._hear_nodes()
        faults = node_faults(self.names, self.came, facts, self.limits)
        untested = 0
        if not faults:
            untested = self._test_pairs()
            faults = pair_faults(self.names, self.pairs, self.silent)
        return Verdict(self.names, faults, facts, self.pairs, untested)

    def tell(self, verdict: dict[str, Any]) -> None:
        """Tell the nodes the verdict, and wait a moment until those that can have heard it."""
        self._order({"verdict": verdict})
        self._collect("bye", self.came - self.silent, min(self.deadline, time.monotonic() + _FAREWELL_SECONDS))

    def _hear_nodes(self) -> dict[int, Facts]:
        """What each node says of itself; those that say nothing in time are missing. Sets `came`."""
        until = self.deadline - self.meeting.seconds * (1 - _TO_COME)
        waiting, unasked = set(range(len(self.names))), set(range(len(self.names)))

        def meanwhile() -> None:
            nonlocal until
            for rank in self._ready("came", waiting - self.came):
                self.came.add(rank)
                # A node that started earlier has less time left, and nobody must be waited for that has given up.
                said = self._read("came", rank)
                self.names[rank] = said["name"]
                self.deadline = min(self.deadline, time.monotonic() + float(said["seconds"]))
                until = min(until, self.deadline - 1)
            for rank in self._ready("ask", unasked):
                self.store.set(f"clock/{rank}", repr(time.time()))
                unasked.discard(rank)

        found = self._collect("facts", waiting, lambda: until, meanwhile)
        return {rank: Facts(**{**said, "faults": tuple(said["faults"])}) for rank, said in found.items()}

    def _test_pairs(self) -> int:
        """Round after round; returns how many pairs there was no time for. Nodes that are at fault for certain are left
        out of later rounds, so that they cost no more time.
        """
        rounds = rounds_of(len(self.names))
        for number, pairs in enumerate(rounds):
            share = (self.deadline - _FAREWELL_SECONDS - time.monotonic()) / (len(rounds) - number)
            seconds = min(self.meeting.pair_seconds, share - min(_LATE_SECONDS, share / 2))
            if seconds < _SHORTEST_EXCHANGE_SECONDS:
                return sum(len(later) for later in rounds[number:])
            out = self.silent | blamed(self.pairs)
            meeting = [pair for pair in pairs if not set(pair) & out]
            self._order({"round": number, "seconds": seconds, "out": sorted(out)})
            expected = {node for pair in meeting for node in pair}
            said = self._collect(f"result/{number}", expected, time.monotonic() + seconds + _LATE_SECONDS)
            self.silent |= expected - said.keys()
            self.pairs += [_result(pair, [said[node] for node in pair if node in said]) for pair in meeting]
        return 0

    def _order(self, order: dict[str, Any]) -> None:
        self.store.set(f"order/{self.orders}", json.dumps(order))
        self.orders += 1

    def _collect(
        self,
        kind: str,
        ranks: Iterable[int],
        until: float | Callable[[], float],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> dict[int, Any]:
        """What those nodes said under a key, until all have or time is up."""
        found: dict[int, Any] = {}
        waiting = set(ranks)
        while True:
            meanwhile()
            for rank in self._ready(kind, waiting):
                found[rank] = self._read(kind, rank)
                waiting.discard(rank)
            if not waiting or time.monotonic() > (until() if callable(until) else until):
                return found
            time.sleep(_POLL_SECONDS)

    def _ready(self, kind: str, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if self.store.check([f"{kind}/{rank}"])]

    def _read(self, kind: str, rank: int) -> Any:
        return json.loads(self.store.get(f"{kind}/{rank}") or b"null")


def _result(pair: tuple[int, int], said: list[dict[str, Any]]) -> Pair:
    """Both sides of an all-reduce as one: it succeeded when both say so."""
    failures = [each["message"] for each in said if each["gigabytes_per_second"] is None]
    if len(said) < 2 or failures:
        return Pair(pair, None, failures[0] if failures else "no answer")
    return Pair(pair, min(each["gigabytes_per_second"] for each in said))
