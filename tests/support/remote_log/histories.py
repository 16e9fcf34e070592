"""All short histories of two brokers that copy and delete the remote segments of one partition.

The log has four records; the first two are of leader epoch 1, the others of epoch 2, so broker 0, which leads first,
may go on in epoch 1 without them. The brokers close segments at different offsets. A step is a listing, one request to
the store, a change of a local log, an election, a crash, or a unit of time. A former leader goes on until it is
demoted. Decisions are those of the production code: ``RemoteLog`` and ``plans``.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from moldau.runtime.ports.objects import StoredObject
from moldau_broker.remote_log.core import plans
from moldau_broker.remote_log.core.names import AUXILIARY, LOG, DeletionProof, Listing, RemoteSegment, segments_of
from moldau_broker.remote_log.core.plans import ClosedRange, Retention
from moldau_broker.remote_log.core.remote_log import RemoteLog

if TYPE_CHECKING:
    from collections.abc import Iterator

DELAY_MS = 100
"""``remote.log.unfinished.delete.delay.ms``, and a unit of time: what is in progress is given up within it."""
SHORT_END, END = 2, 4
"""Log end offset of epoch 1, and of epoch 2."""
BYTES = 10
"""Bytes of a record."""
Cuts = tuple[tuple[int, ...], tuple[int, ...]]
"""Where each broker closes segments; broker 0 closes one at 2 since its log may end there."""
CUTS: tuple[Cuts, ...] = (((0, 1, 2, 4), (0, 1, 3, 4)), ((0, 2, 4), (0, 1, 3, 4)))


class Known(NamedTuple):
    """The last listing of a broker, with its changes since then."""

    segments: frozenset[RemoteSegment]
    unfinished: frozenset[StoredObject]
    proofs: frozenset[DeletionProof]
    listed_ms: int


class Broker(NamedTuple):
    """One broker."""

    leader_epoch: int = 0
    """The epoch in which it believes to lead; 0 if it does not."""
    log_start: int = 0
    local_start: int = 0
    end: int = SHORT_END
    known: Known | None = None
    copied_end: int = 0
    copying: RemoteSegment | None = None
    """Its ``.aux`` was put."""
    deleting: RemoteSegment | None = None
    """Its ``.log`` was deleted."""


class World(NamedTuple):
    """Two brokers and a store."""

    brokers: tuple[Broker, Broker]
    objects: frozenset[StoredObject] = frozenset()
    now_ms: int = 0
    epoch: int = 1
    """The newest leader epoch."""
    decided: int = 0
    """The largest offset below which retention of any leader has given records up."""
    crashes: int = 0
    copies: int = 0

    @property
    def leader(self) -> int:
        """The broker that leads in the newest epoch."""
        return 0 if self.brokers[0].leader_epoch == self.epoch else 1

    def with_broker(self, index: int, **changes: object) -> World:
        """Returns the world with a changed broker."""
        changed = self.brokers[index]._replace(**changes)  # type: ignore[arg-type]
        return self._replace(brokers=(changed, self.brokers[1]) if index == 0 else (self.brokers[0], changed))

    def put(self, segment: RemoteSegment, suffix: str) -> World:
        """Returns the world with a new object."""
        size = segment.size_bytes if suffix == LOG else 1
        return self._replace(objects=self.objects | {StoredObject(segment.name + suffix, size, self.now_ms)})

    def remove(self, name: str) -> World:
        """Returns the world without an object."""
        return self._replace(objects=frozenset(item for item in self.objects if item.name != name))


class Scope(NamedTuple):
    """How far histories go."""

    elections: int = 2
    units: int = 2
    crashes: int = 1
    copies: int = 4
    cuts: Cuts = CUTS[0]
    retention: Retention = Retention(-1, 2 * BYTES)


@cache
def listing_of(objects: frozenset[StoredObject]) -> Listing:
    return segments_of(sorted(objects))


def _epoch_for(end: int, log_start: int, offset: int) -> int:
    if offset < log_start:
        return -1
    return 1 if offset < SHORT_END or end == SHORT_END else 2


@cache
def remote_log(known: Known, end: int, log_start: int) -> RemoteLog:
    """Returns the production's view; it is shared, and must not be changed."""
    listing = Listing(sorted(known.segments), sorted(known.unfinished), sorted(known.proofs))
    return RemoteLog(listing, lambda offset: _epoch_for(end, log_start, offset), known.listed_ms)


def view_of(broker: Broker) -> RemoteLog:
    assert broker.known is not None
    return remote_log(broker.known, broker.end, broker.log_start)


def closed(scope: Scope, index: int, broker: Broker) -> list[ClosedRange]:
    """Returns the closed local segments of a broker."""
    cuts = [broker.local_start, *(cut for cut in scope.cuts[index] if broker.local_start < cut <= broker.end)]
    return [ClosedRange(base, end - 1) for base, end in pairwise(cuts)]


def leader_steps(world: World, index: int, scope: Scope) -> Iterator[tuple[str, World]]:
    """Yields the next steps of a broker that believes to lead."""
    broker = world.brokers[index]
    if broker.deleting is not None:
        yield "delete-aux", world.remove(broker.deleting.name + AUXILIARY).with_broker(index, deleting=None)
        return
    if broker.copying is not None:
        yield "copy-log", _finish_copy(world, index)
        return
    yield "list", list_store(world, index)
    if broker.known is None:
        return
    remote = view_of(broker)
    ranges = closed(scope, index, broker)
    to_copy = plans.to_copy(remote, ranges, broker.log_start)
    if to_copy and world.copies < scope.copies:
        base, last = ranges[to_copy[0]]
        number = world.copies + 1
        segment_id = UUID(int=number if index == 0 else 100 - number)  # of equal copies, either one may stay
        epoch = _epoch_for(broker.end, 0, last)
        segment = RemoteSegment(base, last, epoch, last, False, segment_id, BYTES * (last + 1 - base))
        copying = world._replace(copies=number).with_broker(index, copying=segment)
        yield "copy-aux", copying.put(segment, AUXILIARY)
    start = plans.start_by_retention(
        remote,
        scope.retention,
        log_start_offset=broker.log_start,
        uncopied_bytes=BYTES * (broker.end - broker.copied_end),
        now_ms=world.now_ms,
    )
    if start > broker.log_start:
        local_start = max((last + 1 for _, last in ranges if last < start), default=broker.local_start)
        moved = world.with_broker(index, log_start=start, local_start=local_start)
        yield "retention", moved._replace(decided=max(start, world.decided))
    yield from _deletions(world, index, scope)


def _finish_copy(world: World, index: int) -> World:
    broker = world.brokers[index]
    assert broker.copying is not None
    assert broker.known is not None
    known = broker.known._replace(segments=broker.known.segments | {broker.copying})
    return note_copied(world.put(broker.copying, LOG).with_broker(index, copying=None, known=known), index)


def note_copied(world: World, index: int) -> World:
    broker = world.brokers[index]
    return world.with_broker(index, copied_end=view_of(broker).copied_end(broker.local_start))


def list_store(world: World, index: int) -> World:
    """The listing of a leader or follower; a leader moves its log start offset behind deleted segments."""
    listing = listing_of(world.objects)
    known = Known(frozenset(listing.segments), frozenset(listing.unfinished), frozenset(listing.proofs), world.now_ms)
    world = world.with_broker(index, known=known)
    broker = world.brokers[index]
    if broker.leader_epoch:
        start = plans.start_behind_deleted(view_of(broker), broker.leader_epoch, log_start_offset=broker.log_start)
        assert start <= max(world.decided, broker.log_start), f"{start} was lost, retention went to {world.decided}"
        world = world.with_broker(index, log_start=start)
    return note_copied(world, index)


def _deletions(world: World, index: int, scope: Scope) -> Iterator[tuple[str, World]]:
    broker = world.brokers[index]
    assert broker.known is not None
    plan = plans.to_delete(
        view_of(broker),
        scope.retention,
        log_start_offset=broker.log_start,
        leader_epoch=broker.leader_epoch,
        now_ms=world.now_ms,
        unfinished_delete_delay_ms=DELAY_MS,
    )
    if plan.proofs:
        known = broker.known._replace(proofs=broker.known.proofs | {plan.proofs[0]})
        proof = StoredObject(plan.proofs[0].name, 0, world.now_ms)
        yield "prove", world._replace(objects=world.objects | {proof}).with_broker(index, known=known)
    elif plan.segments:
        segment = plan.segments[0]
        known = broker.known._replace(segments=broker.known.segments - {segment})
        yield "delete-log", world.remove(segment.name + LOG).with_broker(index, known=known, deleting=segment)
    elif plan.objects:
        item = plan.objects[0]
        known = broker.known._replace(unfinished=broker.known.unfinished - {item})
        yield "delete-unfinished", world.remove(item.name).with_broker(index, known=known)
    elif plan.needless:
        needless = plan.needless[0]
        known = broker.known._replace(proofs=broker.known.proofs - {needless})
        yield "delete-proof", world.remove(needless.name).with_broker(index, known=known)


def _local_deletion(world: World, index: int, scope: Scope) -> Iterator[tuple[str, World]]:
    broker = world.brokers[index]
    start = max(
        (each.last_offset + 1 for each in closed(scope, index, broker) if each.last_offset < broker.copied_end),
        default=0,
    )
    if start > broker.local_start:
        yield "delete-local", world.with_broker(index, local_start=start)


def _caught_up(world: World, index: int) -> World:
    """A follower gets the leader's records, from the store if the leader has them only there."""
    broker, leader = world.brokers[index], world.brokers[world.leader]
    if broker.end < leader.local_start:
        return world.with_broker(index, end=END, local_start=leader.local_start, log_start=leader.log_start)
    return world.with_broker(index, end=leader.end)


def _elected(world: World, index: int) -> World:
    world = _caught_up(world, index)
    world = world._replace(epoch=world.epoch + 1)
    return world.with_broker(index, leader_epoch=world.epoch, end=END, known=None, copying=None, deleting=None)


def steps(world: World, scope: Scope) -> Iterator[tuple[str, World]]:
    """Yields all next steps."""
    for index in (0, 1):
        broker = world.brokers[index]
        is_listing = broker.leader_epoch == 0
        own = [("list", list_store(world, index))] if is_listing else leader_steps(world, index, scope)
        for name, after in (*own, *_local_deletion(world, index, scope)):
            if after != world:
                yield f"{index}-{name}", after
        is_leader = index == world.leader
        if not is_leader and world.epoch <= scope.elections:
            yield f"{index}-elected", _elected(world, index)
        if not is_leader and broker.leader_epoch:
            demoted = Broker(0, broker.log_start, broker.local_start, broker.end)
            yield f"{index}-demoted", _caught_up(world.with_broker(index, **demoted._asdict()), index)
        if world.crashes < scope.crashes and is_leader:
            crashed = Broker(broker.leader_epoch, broker.log_start, broker.local_start, broker.end)
            yield f"{index}-crash", world._replace(crashes=world.crashes + 1).with_broker(index, **crashed._asdict())
    if world.now_ms < scope.units * DELAY_MS:
        later = world._replace(now_ms=world.now_ms + DELAY_MS)
        yield "time", later.with_broker(0, copying=None).with_broker(1, copying=None)


def check(world: World) -> None:
    """Checks that each broker has all records that retention has not given up, here or in the store."""
    held = {
        offset
        for segment in listing_of(world.objects).segments
        if _epoch_for(END, 0, segment.last_offset) == segment.last_epoch
        for offset in range(segment.base_offset, segment.end_offset)
    }
    for index, broker in enumerate(world.brokers):
        for offset in range(max(world.decided, broker.log_start), min(broker.end, broker.local_start)):
            assert offset in held, f"broker {index} has lost offset {offset}"


def check_size(broker: Broker) -> None:
    """Checks that each offset counts once."""
    remote = view_of(broker)
    union = {offset for each in remote.segments for offset in range(each.base_offset, each.end_offset)}
    assert remote.size_bytes == BYTES * len(union), f"{remote.segments} have {remote.size_bytes} bytes"


def settled(world: World, scope: Scope) -> World:
    """Lets the present leader work alone until it finds nothing to do."""
    leader, other = world.leader, 1 - world.leader
    world = world.with_broker(other, **Broker(0)._asdict()).with_broker(leader, copying=None, deleting=None)
    world = world._replace(now_ms=world.now_ms + DELAY_MS)
    world = list_store(world, leader)
    for _ in range(60):
        following = [
            (name, after) for name, after in leader_steps(world, leader, scope._replace(copies=1000)) if name != "list"
        ]
        if not following:
            return world
        world = following[0][1]
        check(world)
    raise AssertionError("the leader finds no end")


def check_settled(world: World) -> None:
    """Checks that nothing stays in the store but the segments that the leader needs."""
    broker = world.brokers[world.leader]
    listing = listing_of(world.objects)
    assert not listing.unfinished, f"{listing.unfinished} stay"
    remote = RemoteLog(listing, lambda offset: _epoch_for(broker.end, broker.log_start, offset), world.now_ms)
    assert not remote.contained, f"{remote.contained} stay"
    assert not remote.foreign, f"{remote.foreign} stay"
    assert all(segment.end_offset > broker.log_start for segment in remote.segments), f"{remote.segments} stay"
    past = [each for each in remote.proofs if each.end_offset <= broker.log_start]
    assert len(past) <= plans.PROOFS_KEPT, f"{past} stay"
    copied_end = remote.copied_end(broker.log_start)
    assert copied_end == max(broker.end, broker.log_start), f"{copied_end} is the end of what was copied"


def explore(scope: Scope) -> tuple[int, dict[str, int]]:
    """Checks all worlds within the scope; returns how many there are, and how often each step was taken."""
    first = World((Broker(leader_epoch=1), Broker()))
    origin: dict[World, tuple[World, str] | None] = {first: None}
    queue, counts = [first], dict[str, int]()
    checked: set[object] = set()
    for world in queue:
        try:
            for index in (0, 1):
                if world.brokers[index].known is not None:
                    check_size(world.brokers[index])
            logs = tuple((broker.log_start, broker.local_start, broker.end) for broker in world.brokers)
            facts = (world.objects, logs, world.leader, world.epoch, world.decided, world.now_ms)
            if facts not in checked:
                checked.add(facts)
                check(world)
                check_settled(settled(world, scope))
            for name, after in steps(world, scope):
                counts[name] = counts.get(name, 0) + 1
                if after not in origin:
                    origin[after] = (world, name)
                    queue.append(after)
        except AssertionError as error:
            error.add_note("history: " + " ".join(_history(origin, world)))
            raise
    return len(queue), counts


def _history(origin: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    names: list[str] = []
    while (step := origin[world]) is not None:
        world, name = step
        names.insert(0, name)
    return names
