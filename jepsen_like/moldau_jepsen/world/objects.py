"""The object store of a simulated world, with its faults and a history for checkers.

A ``SimulatedStore`` is one service that all nodes of a world use: it outlives them, and all see the same objects.
``SimulatedObjects`` is the port of one process. A call travels to the store, has its effect at one instant, and its
answer travels back; all times are virtual. Lists show what was written before that instant.

Faults are troubles of a profile, as those of disks are. A request without an answer, or whose caller is killed or
cancelled before its effect, may still be in flight: a put or a delete can have its effect up to ``LATE_SECONDS`` later.
"""

from __future__ import annotations

import enum
import errno
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NoReturn, TypeVar

import trio

from moldau.runtime.ports.object_names import check_folder, check_name, check_prefix, check_range
from moldau.runtime.ports.objects import LISTED_MAX, ObjectNotFoundError, ObjectStoreError, StoredObject
from moldau_jepsen.world.time.clocks import EPOCH_MS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.objects import Content
    from moldau_jepsen.world.time.timeline import Agenda
    from moldau_jepsen.world.trace import Trace

T = TypeVar("T")

MIB = 1024 * 1024
LATE_SECONDS = 60.0
"""Latest effect of a request after its caller gave up."""
SILENCE_SECONDS = 10.0
"""Time after which the port fails a call that the store does not answer."""
IN_FLIGHT_SHARE = 0.3
"""Share of the puts and deletes without an answer that have their effect later."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObjectTrouble:
    """The effects of one fault on the store while it lasts; the defaults have none. Times in seconds."""

    on_effect: Callable[[], None]
    """Called after each call that this fault failed or delayed, perhaps together with other faults."""
    machines: tuple[str, ...] | None = None  # whose calls it concerns; None: all
    is_away: bool = False  # refuses some calls at once and answers the others not at all
    delay_jitter: float = 0.0  # mean of an exponential distribution
    stall_probability: float = 0.0
    stall_max: float = 0.0
    error_before_probability: float = 0.0
    error_after_probability: float = 0.0  # the effect, and no answer
    late_put_probability: float = 0.0  # no answer, and the effect up to LATE_SECONDS later

    def concerns(self, machine: str) -> bool:
        """Returns whether the calls of a machine can meet this fault."""
        return self.machines is None or machine in self.machines


@dataclass(slots=True, kw_only=True)
class ObjectProfile:
    """The behaviour of the store without faults, and the current faults. Times in seconds."""

    delay_min: float = 0.005
    delay_jitter: float = 0.02  # mean of an exponential distribution on top
    seconds_of_mib: float = 0.01
    troubles: list[ObjectTrouble] = field(default_factory=list)

    def begin(self, trouble: ObjectTrouble) -> None:
        """Adds the effects of a fault."""
        self.troubles.append(trouble)

    def end(self, trouble: ObjectTrouble) -> None:
        """Removes the effects of one fault; does nothing if it has ended already."""
        if trouble in self.troubles:
            self.troubles.remove(trouble)

    def end_all(self) -> None:
        """Removes the effects of all faults."""
        self.troubles.clear()


@dataclass(slots=True, kw_only=True)
class ObjectLife:
    """One object from its put to its delete. Times in virtual seconds."""

    name: str
    size_bytes: int
    put_seconds: float
    put_by: str
    deleted_seconds: float | None = None
    deleted_by: str | None = None
    puts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedRead:
    """A read of a name without object."""

    name: str
    seconds: float
    machine: str


class SimulatedStore:
    """The service: its objects, its faults and its history."""

    def __init__(self, agenda: Agenda, stream: random.Random, trace: Trace) -> None:
        """Starts empty; ``stream`` decides latencies and faults."""
        self.profile = ObjectProfile()
        self.lives: list[ObjectLife] = []
        """All objects that were ever written, in the order of their puts."""
        self.missed_reads: list[MissedRead] = []
        self.changed_names: list[str] = []
        """Names that were put again with other bytes, which the port forbids."""
        self.counts: Counter[str] = Counter()
        """Effects by kind: put, read, list, list_folders, delete; ``put_bytes`` and ``read_bytes``."""
        self.random = stream
        self.agenda = agenda
        self.trace = trace
        self._names: list[str] = []  # sorted
        self._contents: dict[str, bytes] = {}
        self._modified_ms: dict[str, int] = {}
        self._living: dict[str, ObjectLife] = {}

    def names(self, prefix: str = "") -> list[str]:
        """Returns the names of the objects that exist, in order; for checkers."""
        return [name for name in self._names if name.startswith(prefix)]

    def content(self, name: str) -> bytes:
        """Returns an object's bytes; for checkers.

        Raises:
            KeyError: it does not exist.
        """
        return self._contents[name]

    # --- effects, each at one instant

    def put(self, machine: str, name: str, content: bytes) -> None:
        """Writes an object."""
        now = self.agenda.clock.now
        self._count("put", machine, name, len(content))
        if name in self._contents:
            self._living[name].puts += 1
            if self._contents[name] != content:
                self.changed_names.append(name)
        else:
            insort(self._names, name)
            life = ObjectLife(name=name, size_bytes=len(content), put_seconds=now, put_by=machine)
            self._living[name] = life
            self.lives.append(life)
        self._contents[name] = content
        self._modified_ms[name] = EPOCH_MS + int(now * 1000)

    def delete(self, machine: str, name: str) -> None:
        """Deletes an object if it exists."""
        self._count("delete", machine, name, 0)
        if name in self._contents:
            self._names.remove(name)
            del self._contents[name], self._modified_ms[name]
            life = self._living.pop(name)
            life.deleted_seconds, life.deleted_by = self.agenda.clock.now, machine

    def read(self, machine: str, name: str, position: int, count: int) -> bytes:
        """Returns bytes of an object.

        Raises:
            ObjectNotFoundError: there is no such object.
        """
        if name not in self._contents:
            self._count("miss", machine, name, 0)
            self.missed_reads.append(MissedRead(name=name, seconds=self.agenda.clock.now, machine=machine))
            raise ObjectNotFoundError(f"the store has no object {name}")
        found = self._contents[name][position : position + count]
        self._count("read", machine, name, len(found))
        return found

    def list(self, machine: str, prefix: str, after: str) -> Sequence[StoredObject]:
        """Returns a page of objects."""
        start = max(bisect_left(self._names, prefix), bisect_right(self._names, after))
        found = takewhile(lambda name: name.startswith(prefix), islice(self._names, start, start + LISTED_MAX))
        page = [StoredObject(name, len(self._contents[name]), self._modified_ms[name]) for name in found]
        self._count("list", machine, prefix, len(page))
        return page

    def list_folders(self, machine: str, prefix: str) -> Sequence[str]:
        """Returns the folders below a prefix."""
        found = {name[len(prefix) :].split("/")[0]: None for name in self.names(prefix) if "/" in name[len(prefix) :]}
        self._count("list_folders", machine, prefix, len(found))
        return sorted(found)

    def _count(self, kind: str, machine: str, name: str, size: int) -> None:
        self.counts[kind] += 1
        if kind in ("put", "read"):
            self.counts[f"{kind}_bytes"] += size
        self.trace.event(f"object-{kind}", machine, name, size)


class _Fate(enum.Enum):
    """The way in which a call ends."""

    ANSWERED = "answered"
    REFUSED = "refused"  # before the effect
    SILENT = "silent"  # no effect, unless the request is in flight
    LOST = "lost"  # the effect, and an error or no answer
    LATE = "late"  # no answer, and the effect later


class SimulatedObjects:
    """The ``ObjectStore`` port of one process in a simulated world."""

    def __init__(self, store: SimulatedStore, machine: str) -> None:
        """Makes the port of a new process on ``machine``."""
        self._store = store
        self._machine = machine
        self.frozen = False
        """Whether the process is dead: its calls fail, and have no effect but those in flight."""

    def open(self, url: str) -> SimulatedObjects:
        """Returns the store of any URL; for ``Environment.open_objects``."""
        assert url, "a store has a URL"
        return self

    async def put(self, name: str, content: Content) -> None:
        """See ``ObjectStore.put``; the content is read in two parts, at different times."""
        check_name(name)
        self._check()
        size = content.size_bytes
        half = self._store.random.randint(0, size)
        first = content.read(0, half)
        await trio.sleep(self._store.random.uniform(0.0, self._transfer_seconds(size)))
        self._check()
        whole = first + content.read(half, size - half)
        if len(whole) != size:
            raise OSError(errno.EIO, f"the content of {name} ended after {len(whole)} bytes")
        await self._call("put", size, partial(self._store.put, self._machine, name, whole), changes=True)

    async def read(self, name: str, position: int, count: int) -> bytes:
        """See ``ObjectStore.read``."""
        check_range(position, count)
        read = partial(self._store.read, self._machine, check_name(name), position, count)
        return await self._call("read", count, read)

    async def list(self, prefix: str, *, after: str = "") -> Sequence[StoredObject]:
        """See ``ObjectStore.list``."""
        return await self._call(
            "list", 0, partial(self._store.list, self._machine, check_prefix(prefix), check_prefix(after))
        )

    async def list_folders(self, prefix: str) -> Sequence[str]:
        """See ``ObjectStore.list_folders``."""
        return await self._call(
            "list_folders", 0, partial(self._store.list_folders, self._machine, check_folder(prefix))
        )

    async def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``; the names of one call are deleted one by one, each with its own fate."""
        for name in map(check_name, names):
            await self._call("delete", 0, partial(self._store.delete, self._machine, name), changes=True)

    def close(self) -> None:
        """See ``ObjectStore.close``; there is nothing to give back."""

    # --- one call

    def _check(self) -> None:
        if self.frozen:
            raise ObjectStoreError(f"{self._machine} has crashed")

    def _transfer_seconds(self, size: int) -> float:
        return self._store.profile.seconds_of_mib * size / MIB

    async def _call(self, kind: str, size: int, effect: Callable[[], T], *, changes: bool = False) -> T:
        self._check()
        random = self._store.random
        delay = self._draw_delay() + self._transfer_seconds(size)
        fate = self._draw_fate(kind)
        before = delay * random.random()
        try:
            await trio.sleep(before)
            self._check()
        except BaseException:  # The process was killed, or the caller gave up.
            if changes and random.random() < IN_FLIGHT_SHARE:
                self._be_late(kind, effect)
            raise
        match fate:
            case _Fate.REFUSED:
                await self._fail(kind, delay - before)
            case _Fate.SILENT | _Fate.LATE:
                if changes and (fate is _Fate.LATE or random.random() < IN_FLIGHT_SHARE):
                    self._be_late(kind, effect)
                await self._fail(kind, SILENCE_SECONDS)
            case _Fate.LOST:
                effect()
                await self._fail(kind, random.choice((delay - before, SILENCE_SECONDS)))
        result = effect()
        await trio.sleep(delay - before)
        self._check()  # A dead process must not receive the result.
        return result

    async def _fail(self, kind: str, seconds: float) -> NoReturn:
        await trio.sleep(seconds)
        raise ObjectStoreError(f"the store did not answer a {kind} of {self._machine}")

    def _be_late(self, kind: str, effect: Callable[[], object]) -> None:
        seconds = self._store.random.uniform(0.0, LATE_SECONDS)
        self._store.trace.note("object-late", self._machine, kind, round(seconds, 3))

        def arrive() -> None:
            effect()

        self._store.agenda.call_after(seconds, arrive)

    def _troubles(self) -> Sequence[ObjectTrouble]:
        return [each for each in self._store.profile.troubles if each.concerns(self._machine)]

    def _draw_delay(self) -> float:
        profile, random = self._store.profile, self._store.random
        delay = profile.delay_min + random.expovariate(1.0) * profile.delay_jitter
        for trouble in self._troubles():
            slowed = random.expovariate(1.0) * trouble.delay_jitter
            if random.random() < trouble.stall_probability:
                slowed += random.uniform(0.0, trouble.stall_max)
            if slowed > 0.0:
                delay += slowed
                trouble.on_effect()
        return delay

    def _draw_fate(self, kind: str) -> _Fate:
        random = self._store.random
        for trouble in self._troubles():
            fate = _Fate.ANSWERED
            if trouble.is_away:
                fate = random.choice((_Fate.REFUSED, _Fate.SILENT))
            elif random.random() < trouble.error_before_probability:
                fate = _Fate.REFUSED
            elif random.random() < trouble.error_after_probability:
                fate = _Fate.LOST
            elif kind == "put" and random.random() < trouble.late_put_probability:
                fate = _Fate.LATE
            if fate is not _Fate.ANSWERED:
                self._store.trace.note("object-fault", self._machine, kind, fate.value)
                trouble.on_effect()
                return fate
        return _Fate.ANSWERED
