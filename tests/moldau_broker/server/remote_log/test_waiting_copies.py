"""Goal: a copy that has waited for its turn is made only if it is still wanted.

Method: one round of a leader with two closed segments, with each change of the log, its topic or the store that can
come while the round waits for a slot of the copier, before the first copy, the second one, or none.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau_broker.remote_log.core.names import Listing, RemoteSegment
from moldau_broker.server.remote_log.leader import LeaderTasks
from moldau_broker.server.remote_log.remote_partition import RemotePartition, RemoteRole

if TYPE_CHECKING:
    from collections.abc import Callable

BASES = (0, 10)


class Leader:
    """A leader whose copier calls ``change`` while a copy waits for the slot number ``change_at``."""

    def __init__(self, change: Callable[[Leader], None], change_at: int) -> None:
        self.change = change
        self.change_at = change_at
        self.slots = 0
        self.is_inside = False
        self.copied: list[int] = []
        self.log: Any = SimpleNamespace(
            config=SimpleNamespace(remote_log_copy_disable=False),
            storage=SimpleNamespace(segments=SimpleNamespace(generation=0)),
            epochs=SimpleNamespace(epoch_for_offset=lambda offset: 0),
            knows_remote_epochs=True,
            log_start_offset=0,
            local_log_start_offset=0,
            copied_end_offset=0,
            log_end_offset=30,
            note_copied=lambda offset: None,
            closed_segments=lambda from_offset: [closed(base) for base in BASES],
        )
        traffic = SimpleNamespace(remote_copy_requests=0, remote_copy_errors=0, remote_copy_bytes=0)
        replica = SimpleNamespace(state=SimpleNamespace(leader_epoch=0))
        self.partition: Any = SimpleNamespace(
            log=self.log, replica=replica, traffic=traffic, key="t-0", error=ErrorCode.NONE
        )
        self.remote = RemotePartition(self.partition, "t/0/", RemoteRole.LEADER)
        self.clock: Any = SimpleNamespace(monotonic_ms=lambda: 1.0, wall_ms=lambda: 1)
        self.show()

    def show(self, *segments: RemoteSegment) -> None:
        """Lists the store."""
        self.remote.begin_listing(self.clock)
        self.remote.end_listing(Listing(list(segments), []))

    def slot(self) -> Leader:
        """Returns the copier's slot."""
        return self

    async def __aenter__(self) -> None:
        if self.slots == self.change_at:
            self.change(self)
        self.slots += 1
        self.is_inside = True

    async def __aexit__(self, *failure: object) -> None:
        self.is_inside = False

    async def check(self, found: object, check: object) -> None:
        """Finds a segment sound."""

    async def encode(self, parts: object) -> tuple[bytes, bytes]:
        """Returns an ``.aux`` and its digest."""
        return b"", b""

    async def wait_for_rate(self, size_bytes: int) -> None:
        """Allows any rate."""

    async def put(self, folder: str, segment: RemoteSegment, auxiliary: bytes, content: object) -> None:
        """Takes a copy."""
        assert self.is_inside
        self.copied.append(segment.base_offset)

    def run_round(self) -> None:
        """Runs one round of copies."""
        tools: Any = SimpleNamespace(
            environment=SimpleNamespace(clock=self.clock, random=random.Random(1)),
            settings=SimpleNamespace(unfinished_delete_delay_ms=1000.0),
            copier=self,
            logger=SimpleNamespace(info=lambda *_, **__: None),
        )
        trio.run(LeaderTasks(tools, self.remote)._copy_round)


def closed(base: int) -> Any:
    return SimpleNamespace(
        base_offset=base,
        last_offset=base + 9,
        end_offset=base + 10,
        last_epoch=0,
        max_timestamp_ms=5,
        has_aborted=False,
        size_bytes=100,
        parts=None,
        content=SimpleNamespace(size_bytes=100),
        release=lambda: None,
    )


def no_copies_wanted(leader: Leader) -> None:
    leader.log.config = SimpleNamespace(remote_log_copy_disable=True)


def truncated(leader: Leader) -> None:
    leader.log.storage.segments.generation += 1


def moved_to_another_directory(leader: Leader) -> None:
    leader.partition.log = SimpleNamespace(**vars(leader.log))


def moved_and_listed(leader: Leader) -> None:
    moved_to_another_directory(leader)
    leader.show()


def expired(leader: Leader) -> None:
    leader.log.log_start_offset = leader.log.local_log_start_offset = 20


def copied_by_another_leader(leader: Leader) -> None:
    leader.show(*(RemoteSegment(base, base + 9, 0, 5, False, UUID(int=base), 100) for base in BASES))


def store_without_what_the_disk_lacks(leader: Leader) -> None:
    leader.log.local_log_start_offset = 5
    leader.show()


CHANGES = (
    no_copies_wanted,
    truncated,
    moved_to_another_directory,
    moved_and_listed,
    expired,
    copied_by_another_leader,
    store_without_what_the_disk_lacks,
)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("change_at", range(len(BASES) + 1))
def test_a_copy_that_waited_must_still_be_wanted(change: Callable[[Leader], None], change_at: int) -> None:
    """The wait can be long: other partitions of the broker copy whole segments meanwhile."""
    leader = Leader(change, change_at)
    leader.run_round()
    assert leader.copied == list(BASES[:change_at])
