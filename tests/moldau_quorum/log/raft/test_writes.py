"""Goal: an entry counts as durable only if a sync that has ended covers it as it is now.

Method: the pure counts of a voter's writes beside a model of its disk, in every short history.
"""

from __future__ import annotations

import itertools

from moldau_quorum.log.raft.core.writes import Writes

BEGINNING = 3
"""Entries that are durable before each history."""


class Model:
    """A log of entries that are all different, and what its disk holds after each write."""

    def __init__(self) -> None:
        self._fresh = itertools.count()
        self.log = [next(self._fresh) for _ in range(BEGINNING)]
        self.written = list(self.log)
        self.durable = list(self.log)
        self.handed_out: dict[int, list[int]] = {}
        self.writes = Writes(BEGINNING)

    def append(self) -> None:
        self.writes.entries_changed(len(self.log) + 1)
        self.log += [next(self._fresh), next(self._fresh)]

    def truncate(self) -> None:
        del self.log[-1:]
        self.writes.truncated(len(self.log))

    def install(self) -> None:
        """Installs a durable snapshot that the log does not agree with; a sync under way finds nothing of the log."""
        self.log = [next(self._fresh), next(self._fresh)]
        self.written, self.durable = list(self.log), list(self.log)
        self.handed_out = dict.fromkeys(self.handed_out, self.written)
        self.writes.reset(len(self.log))

    def hand_out(self) -> None:
        """Writes to the page cache; a truncation alone waits for the next entry."""
        number, first_index, _ = self.writes.hand_out(len(self.log))
        if first_index is not None and first_index <= len(self.log):
            assert self.written[: first_index - 1] == self.log[: first_index - 1], "nothing before it has changed"
            self.written = list(self.log)
        self.handed_out[number] = list(self.written)

    def sync(self) -> None:
        """Ends a sync of the oldest write."""
        if self.handed_out:
            self._synced(min(self.handed_out))

    def sync_all(self) -> None:
        """Ends a sync that covers all writes."""
        if self.handed_out:
            self._synced(max(self.handed_out))

    def _synced(self, number: int) -> None:
        self.durable = self.handed_out[number]
        self.handed_out = {each: data for each, data in self.handed_out.items() if each > number}
        self.writes.synced(number)

    def check(self) -> None:
        pairs = zip(self.log, self.durable, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        assert self.writes.durable_index <= same, f"{self.log} in memory, {self.durable} on disk"


STEPS = (Model.append, Model.truncate, Model.install, Model.hand_out, Model.sync, Model.sync_all)


def test_no_more_is_durable_than_the_disk_holds() -> None:
    """And once all is written and synced, all of it is."""
    for history in itertools.product(STEPS, repeat=6):
        model = Model()
        for step in history:
            step(model)
            model.check()
        for step in (model.append, model.hand_out, model.sync_all):
            step()
        model.check()
        assert model.writes.durable_index == len(model.log)


def test_a_sync_of_replaced_entries_covers_no_new_ones() -> None:
    """The sync under way wrote the former entries; the new ones need the next one."""
    writes = Writes(BEGINNING)
    writes.entries_changed(4)
    former = writes.hand_out(6)
    writes.truncated(4)
    writes.entries_changed(5)
    present = writes.hand_out(7)
    writes.synced(former.number)
    assert writes.durable_index == 4
    writes.synced(present.number)
    assert writes.durable_index == 7
