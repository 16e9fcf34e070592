"""Judges a cluster by what its brokers and its quorum report, the most serious first. Pure.

``failing`` means that some clients are not served now: a partition has no leader or refuses acks=all, a leader does not
answer, or the quorum has no leader. ``degraded`` means that one more failure may have such an effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.values import low_mark_bytes
from moldau_cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.admin import LogDirDescription, QuorumDescription, QuorumReplica, TopicDescription

FAILING: Final = ("no-quorum-leader", "offline", "under-min-isr", "leader-silent")
VOTER_LAG_MAX: Final = 1_000
"""Records of the metadata log that a voter may lack; one more snapshot or restart explains fewer."""
VOTER_SILENCE_MS_MAX: Final = 3_000
"""A voter that did not answer the leader for so long is down; heartbeats are many times as frequent."""
STORE_FAILS: Final = "object-store-fails"
COPIES_BEHIND: Final = "remote-copies-behind"
REPORTED: Final = ("remote-records-missing", STORE_FAILS)
"""Problems of tiered storage that brokers report themselves."""
KINDS: Final = (
    *FAILING,
    "voter-down",
    "voter-lags",
    "broker-down",
    "broker-silent",
    "log-dir-failed",
    "log-dir-nearly-full",
    "under-replicated",
    *REPORTED,
    COPIES_BEHIND,
)
SHOWN_MAX: Final = 20
_NONE: Final[Mapping[int, Sequence[LogDirDescription]]] = MappingProxyType({})
_ALL_ANSWER: Final[Mapping[int, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong. ``kind`` is one of ``KINDS``."""

    kind: str
    subject: str
    detail: str


def judge(
    topics: Mapping[str, TopicDescription],
    min_isr: Mapping[str, int],
    quorum: QuorumDescription,
    brokers: Sequence[int],
    fenced: Sequence[int] = (),
    log_dirs: Mapping[int, Sequence[LogDirDescription]] = _NONE,
    silent: Mapping[int, str] = _ALL_ANSWER,
    reported: Sequence[Problem] = (),
) -> list[Problem]:
    """Returns the problems, ordered by ``KINDS``.

    Args:
        topics: All topics.
        min_isr: ``min.insync.replicas`` of topics with replicas out of sync.
        quorum: The controllers.
        brokers: The brokers in service.
        fenced: Brokers that are registered and not in service, as far as the cluster names them.
        log_dirs: The log directories of the brokers that describe them.
        silent: Brokers in service that did not answer, with the reason.
        reported: The problems of tiered storage, of the kinds ``REPORTED`` and ``COPIES_BEHIND``.
    """
    problems = [*reported, *_of_quorum(quorum), *_of_silent(topics, silent)]
    missing: dict[int, int] = dict.fromkeys(fenced, 0)
    for name, topic in sorted(topics.items()):
        for partition in topic.partitions:
            subject = f"{name}-{partition.partition}"
            isr, replicas = list(partition.isr), list(partition.replicas)
            for replica in set(replicas) - set(brokers):
                missing[replica] = missing.get(replica, 0) + 1
            if partition.leader < 0:
                detail = f"has no leader; replicas {replicas}, last in sync {isr}"
                problems.append(Problem(kind="offline", subject=subject, detail=detail))
            elif len(isr) < len(replicas):
                least = min(min_isr.get(name, 1), len(replicas))
                kind = "under-min-isr" if len(isr) < least else "under-replicated"
                detail = f"ISR {isr} of replicas {replicas}, min.insync.replicas {least}"
                problems.append(Problem(kind=kind, subject=subject, detail=detail))
    for broker, count in sorted(missing.items()):
        detail = f"is down or fenced, and has {count} replicas"
        problems.append(Problem(kind="broker-down", subject=f"broker {broker}", detail=detail))
    for broker, directories in sorted(log_dirs.items()):
        for directory in directories:
            if directory.error is not ErrorCode.NONE:
                detail = f"{directory.path}: {directory.error.name.lower()}; the broker goes on without its replicas"
                problems.append(Problem(kind="log-dir-failed", subject=f"broker {broker}", detail=detail))
            elif is_nearly_full(directory):
                detail = f"{directory.path}: {directory.usable_bytes:,} of {directory.total_bytes:,} bytes are usable"
                problems.append(Problem(kind="log-dir-nearly-full", subject=f"broker {broker}", detail=detail))
    return sorted(problems, key=lambda problem: KINDS.index(problem.kind))


def _of_silent(topics: Mapping[str, TopicDescription], silent: Mapping[int, str]) -> list[Problem]:
    leaders = [partition.leader for topic in topics.values() for partition in topic.partitions] if silent else []
    problems = []
    for broker, reason in sorted(silent.items()):
        led = leaders.count(broker)
        kind, detail = (
            ("leader-silent", f"leads {counted(led, 'partition')}, and {reason}") if led else ("broker-silent", reason)
        )
        problems.append(Problem(kind=kind, subject=f"broker {broker}", detail=detail))
    return problems


def _of_quorum(quorum: QuorumDescription) -> list[Problem]:
    if quorum.leader_id < 0:
        detail = "no controller leads: no leader is elected and no topic changes"
        return [Problem(kind="no-quorum-leader", subject="quorum", detail=detail)]
    end = max((voter.log_end_offset for voter in quorum.voters), default=0)
    now_ms = next((one.last_fetch_ms for one in quorum.voters if one.replica_id == quorum.leader_id), -1)
    problems = []
    for voter in quorum.voters:
        lag = end - max(0, voter.log_end_offset)
        if is_silent(voter, now_ms):
            kind, detail = "voter-down", "does not answer the active controller"
        elif lag > VOTER_LAG_MAX:
            kind, detail = "voter-lags", f"lacks {counted(lag, 'record')} of the metadata log"
        else:
            continue
        problems.append(Problem(kind=kind, subject=f"voter {voter.replica_id}", detail=detail))
    return problems


def is_nearly_full(directory: LogDirDescription) -> bool:
    """Returns whether the disk of a log directory has so little room that brokers begin to free it."""
    return 0 <= directory.usable_bytes < low_mark_bytes(directory.total_bytes)


def is_silent(voter: QuorumReplica, now_ms: int) -> bool:
    """Returns whether the leader has not heard from a voter for long.

    Args:
        voter: The voter, as the leader describes it.
        now_ms: The leader's own ``last_fetch_ms``; negative if the cluster does not tell times.
    """
    return now_ms >= 0 and now_ms - voter.last_fetch_ms > VOTER_SILENCE_MS_MAX


def verdict(problems: Sequence[Problem]) -> str:
    """Returns ``healthy``, ``degraded`` or ``failing``."""
    if any(problem.kind in FAILING for problem in problems):
        return "failing"
    return "degraded" if problems else "healthy"


def shortened(problems: Sequence[Problem]) -> list[Problem]:
    """Returns the problems for a table: of each kind the first ``SHOWN_MAX``, and one line for the others.

    A broker that is down has a problem for each of its replicas; thousands of them would hide the others.
    """
    shown: list[Problem] = []
    for kind, group in groupby(problems, key=lambda problem: problem.kind):
        of_kind = list(group)
        shown += of_kind[:SHOWN_MAX]
        if len(of_kind) > SHOWN_MAX:
            more = len(of_kind) - SHOWN_MAX
            shown.append(Problem(kind=kind, subject=f"and {more:,} more", detail="--json lists all"))
    return shown
