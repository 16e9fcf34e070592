"""One look at a cluster, and what two looks show: rates by broker, topic and group, and troubles. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from moldau_cli.live.core.rates import Meter
from moldau_cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau_cli.output import Json

    Place = tuple[str, int]
    Row = dict[str, Json]

N = TypeVar("N", int, float)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSample:
    """A partition. ``leader`` is -1 and ``end_offset`` None where there is none, or none was reported in time."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    end_offset: int | None

    @property
    def is_offline(self) -> bool:
        """Whether the partition has no leader."""
        return self.leader < 0

    @property
    def is_under_replicated(self) -> bool:
        """Whether replicas are out of sync."""
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSample:
    """A group: its state, its members, and its committed offsets."""

    state: str
    members: int
    offsets: Mapping[Place, int]
    taken_ms: float | None = None
    """When the coordinator answered with the offsets; None: at the time of the look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a cluster.

    ``bytes_held`` maps (broker, topic) to bytes in log directories, without brokers that did not answer. ``requests``
    counts the requests that were sent since the view began, ``groups_left_out`` the groups that this look left out.
    """

    now_ms: float
    brokers: Mapping[int, str]
    controller: int
    partitions: Mapping[Place, PartitionSample]
    bytes_held: Mapping[tuple[int, str], int] = field(default_factory=dict)
    groups: Mapping[str, GroupSample] = field(default_factory=dict)
    requests: int = 0
    groups_left_out: int = 0
    unanswered: tuple[str, ...] = ()
    """The parts of the look that are missing, because a broker did not tell them in time."""
    silent: frozenset[int] = frozenset()
    """The brokers in service that answered nothing in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The content of the display: rows of tables, the busiest first, and counts of troubles."""

    brokers: list[Row]
    topics: list[Row]
    groups: list[Row]
    troubles: list[Row]
    offline: int
    under_replicated: int
    records_per_s: float | None
    requests: int
    groups_left_out: int
    unanswered: tuple[str, ...]
    silent: tuple[int, ...] = ()
    silent_s: float = 0.0
    """How old the view is, because no later look had an answer; 0: it is the present one."""
    silence: str = ""
    """Why the last look had no answer."""

    def after_silence(self, silent_s: float, silence: str) -> View:
        """Returns this view as one of the past."""
        return replace(self, records_per_s=None, silent_s=round(silent_s, 1), silence=silence)

    @property
    def headline(self) -> str:
        """The first line: troubles first."""
        past = f"NO ANSWER for {self.silent_s:.0f} s ({self.silence}); before: " if self.silence else ""
        wrong = [f"{counted(self.offline, 'partition')} OFFLINE"] * bool(self.offline)
        wrong += [f"{counted(self.under_replicated, 'partition')} under-replicated"] * bool(self.under_replicated)
        wrong = wrong or ["all partitions in sync"]
        if self.silent:
            wrong.append(f"NO ANSWER from {', '.join(f'broker {node}' for node in self.silent)}")
        if parts := self._parts_of_others():
            more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
            wrong.append(f"NOT KNOWN: {parts[0]}{more}")
        rate = "-" if self.records_per_s is None else f"{self.records_per_s:,.1f}"
        left_out = f", {self.groups_left_out} more" if self.groups_left_out else ""
        return past + (
            f"{'; '.join(wrong)}; {counted(len(self.brokers), 'broker')}, {counted(len(self.topics), 'topic')}, "
            f"{counted(len(self.groups), 'group')}{left_out}; {rate} records/s"
        )

    def _parts_of_others(self) -> list[str]:
        """Returns the missing parts that a silent broker does not explain."""
        silent = [f"broker {node} " for node in self.silent]
        return [part for part in self.unanswered if not any(name in f"{part} " for name in silent)]

    def document(self) -> Row:
        """Returns the view as JSON."""
        return {
            "offline": self.offline,
            "under_replicated": self.under_replicated,
            "records_per_s": self.records_per_s,
            "brokers": list(self.brokers),
            "topics": list(self.topics),
            "groups": list(self.groups),
            "troubles": list(self.troubles),
            "requests": self.requests,
            "groups_left_out": self.groups_left_out,
            "unanswered": [*self.unanswered],
            "silent_s": self.silent_s,
        }


class Views:
    """Makes views of looks that follow each other."""

    def __init__(self) -> None:
        self._ends: Meter[Place] = Meter()
        self._bytes: Meter[tuple[int, str]] = Meter()
        self._committed: Meter[tuple[str, Place]] = Meter()

    def view(self, sample: Sample) -> View:
        """Returns the view of a look; the first one has no rates."""
        ends: dict[Place, float | None] = {place: part.end_offset for place, part in sample.partitions.items()}
        records = self._ends.rates(ends, sample.now_ms)
        growth = self._bytes.rates(dict(sample.bytes_held), sample.now_ms)
        committed: dict[tuple[str, Place], float | None] = {
            (name, place): offset for name, group in sample.groups.items() for place, offset in group.offsets.items()
        }
        taken_ms = {
            (name, place): group.taken_ms
            for name, group in sample.groups.items()
            if group.taken_ms is not None
            for place in group.offsets
        }
        consumed = self._committed.rates(committed, sample.now_ms, taken_ms)
        parts = sample.partitions
        return View(
            brokers=_busiest(_brokers(sample, records, growth), "records_per_s", "broker"),
            topics=_busiest(_topics(sample, records, growth), "records_per_s", "topic"),
            groups=_busiest(_groups(sample, consumed), "lag", "group"),
            troubles=[_trouble(place, part) for place, part in sorted(parts.items()) if _is_wrong(part)],
            offline=sum(part.is_offline for part in parts.values()),
            under_replicated=sum(part.is_under_replicated and not part.is_offline for part in parts.values()),
            records_per_s=_rounded(_total(records.values())),
            requests=sample.requests,
            groups_left_out=sample.groups_left_out,
            unanswered=sample.unanswered,
            silent=tuple(sorted(sample.silent)),
        )


def _brokers(
    sample: Sample, records: Mapping[Place, float | None], growth: Mapping[tuple[int, str], float | None]
) -> list[Row]:
    led: dict[int, list[Place]] = {}
    held: dict[int, list[PartitionSample]] = {}
    for place, part in sample.partitions.items():
        led.setdefault(part.leader, []).append(place)
        for replica in part.replicas:
            held.setdefault(replica, []).append(part)
    sizes, rates = _by(sample.bytes_held, 0), _by(growth, 0)
    return [
        {
            "broker": broker,
            "address": sample.brokers.get(broker),
            "state": "silent" if broker in sample.silent else "up" if broker in sample.brokers else "down",
            "leaders": len(led.get(broker, ())),
            "replicas": len(held.get(broker, ())),
            "out_of_sync": sum(broker not in part.isr for part in held.get(broker, ())),
            "records_per_s": _rounded(_total(records[place] for place in led.get(broker, ()))),
            "bytes": _total(sizes.get(broker, ())),
            "bytes_per_s": _rounded(_total(rates.get(broker, ()))),
        }
        for broker in sorted(held.keys() | sample.brokers.keys())
    ]


def _by(values: Mapping[tuple[int, str], V], place: int) -> dict[int | str, list[V]]:
    """Returns values by one part of their key, in one pass: a large cluster has hundreds of thousands of them."""
    found: dict[int | str, list[V]] = {}
    for key, value in values.items():
        found.setdefault(key[place], []).append(value)
    return found


def _topics(
    sample: Sample, records: Mapping[Place, float | None], growth: Mapping[tuple[int, str], float | None]
) -> list[Row]:
    rows: list[Row] = []
    places: dict[str, list[Place]] = {}
    for place in sample.partitions:
        places.setdefault(place[0], []).append(place)
    sizes, rates = _by(sample.bytes_held, 1), _by(growth, 1)
    for topic, own in places.items():
        rows.append(
            {
                "topic": topic,
                "partitions": len(own),
                "under_replicated": sum(sample.partitions[place].is_under_replicated for place in own),
                "records_per_s": _rounded(_total(records[place] for place in own)),
                "bytes": _total(sizes.get(topic, ())),
                "bytes_per_s": _rounded(_total(rates.get(topic, ()))),
            }
        )
    return rows


def _groups(sample: Sample, consumed: Mapping[tuple[str, Place], float | None]) -> list[Row]:
    rows: list[Row] = []
    for name, group in sample.groups.items():
        lags = []
        has_all = True
        for place, offset in group.offsets.items():
            part = sample.partitions.get(place)
            if part is not None and part.end_offset is not None:
                lags.append(max(0, part.end_offset - offset))
            has_all = has_all and (part is None or part.end_offset is not None)
        rows.append(
            {
                "group": name,
                "state": group.state,
                "members": group.members,
                "lag": _total(lags) if has_all else None,  # the lag that is not known may be the largest
                "consumed_per_s": _rounded(_total(consumed[name, place] for place in group.offsets)),
            }
        )
    return rows


def _is_wrong(part: PartitionSample) -> bool:
    return part.is_offline or part.is_under_replicated


def _trouble(place: Place, part: PartitionSample) -> Row:
    return {
        "partition": f"{place[0]}-{place[1]}",
        "problem": "offline" if part.is_offline else "under-replicated",
        "leader": None if part.is_offline else part.leader,
        "isr": list(part.isr),
        "replicas": list(part.replicas),
    }


def _busiest(rows: list[Row], figure: str, name: str) -> list[Row]:
    """Sorts by a figure, the greatest first, then by name; rows without the figure come last."""

    def order(row: Row) -> tuple[float, int, str]:
        value, own = row[figure], row[name]
        return (-value if isinstance(value, int | float) else 1.0, own if isinstance(own, int) else 0, str(own))

    return sorted(rows, key=order)


def _total(values: Iterable[N | None]) -> N | None:
    """Returns the sum of the known values, None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)
