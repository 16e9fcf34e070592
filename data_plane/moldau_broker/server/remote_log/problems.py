"""The problems of tiered storage that a broker knows of, for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_broker.server.remote_log.remote_partition import RemotePartition

STORE_FAILS: Final = "object-store-fails"
RECORDS_MISSING: Final = "remote-records-missing"


class StoreProblem(NamedTuple):
    """Something that is wrong; ``kind`` is one of the two above."""

    kind: str
    detail: str


def problems_of(partitions: Iterable[RemotePartition], probe_failure: str) -> list[StoreProblem]:
    """Returns what is wrong with the store and the records in it, as the last rounds of all tasks have met it.

    ``probe_failure`` says why the probe has not succeeded since the start of the broker; empty if it has.
    """
    causes: dict[str, int] = {}
    damaged = 0
    for remote in partitions:
        for cause in dict.fromkeys(remote.failures.values()):
            causes[cause] = causes.get(cause, 0) + 1
        damaged += remote.statistics().damaged
    problems = [
        StoreProblem(STORE_FAILS, f"work for {_partitions(count)} fails: {cause}")
        for cause, count in sorted(causes.items(), key=lambda item: -item[1])[:1]
    ]
    if probe_failure and not problems:
        problems.append(StoreProblem(STORE_FAILS, f"the object store fails: {probe_failure}"))
    if damaged:
        detail = f"{_partitions(damaged)} that it leads: records are lost or damaged"
        problems.append(StoreProblem(RECORDS_MISSING, detail))
    return problems


def _partitions(count: int) -> str:
    return f"{count} tiered partition{'' if count == 1 else 's'}"
