"""The borders of the rules on single facts, which the simulation judges after each step (``simulation.judge``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from moldau.cluster.metadata import TopicPartition
from moldau_jepsen.simulation.judge.invariants import BatchSeen, ClusterInvariants, PartitionKey, PartitionState
from moldau_jepsen.simulation.judge.rules.coordinators import EPOCH_MAX, GroupRules, TransactionRules
from moldau_jepsen.simulation.judge.rules.epochs import EpochRules
from moldau_jepsen.simulation.judge.rules.housekeeping import (
    CLOCK_RATE_MIN,
    FORGIVEN_SECONDS,
    GAP_SECONDS,
    CompactionRules,
    RetentionRules,
    SessionRules,
)
from moldau_jepsen.simulation.judge.rules.producers import ProducerBatch, ProducerRules
from moldau_jepsen.simulation.judge.rules.votes import NO_VOTE, CommitRules, VoteRules
from moldau_jepsen.simulation.judge.rules.watermarks import WatermarkRules
from support.kit.borders.border import Border, Found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Say = tuple[Any, ...]
"""The name of a fact, and its arguments."""
KEY = PartitionKey("t", 0, "id")
P = TopicPartition("t", 0)
BOUND = 5.0 / CLOCK_RATE_MIN + FORGIVEN_SECONDS + GAP_SECONDS


def judge_of(make: Callable[[Callable[[str, str], None]], object], *facts: Say) -> Callable[[], Found]:
    """Returns a judgement: the rules that a judge found broken by these facts."""

    def found() -> Found:
        broken: set[str] = set()
        judge = make(lambda rule, _: broken.add(rule))
        for name, *values in facts:
            named = values.pop() if values and isinstance(values[-1], dict) and name in _NAMED else {}
            getattr(judge, name)(*values, **named)
        return broken

    return found


_NAMED = ("deleted", "state", "marker")
"""Facts whose last value here holds their arguments by keyword."""


def cluster(*facts: Say) -> Callable[[], Found]:
    def found() -> Found:
        judge = ClusterInvariants(lambda: 1.0)
        for name, *values in facts:
            getattr(judge, name)(*values)
        return {each.invariant for each in judge.violations}

    return found


def batch(first: int, last: int, *, crc: int = 7) -> BatchSeen:
    return BatchSeen(first, last, 1, crc)


def state(leader: int = 0, isr: Sequence[int] = (0, 1), elr: Sequence[int] = (2,)) -> Callable[[], Found]:
    """The first state of a partition on the brokers 0 to 2."""
    return cluster(
        ("partition_state", KEY, 1, PartitionState(leader, 1, tuple(isr), (0, 1, 2), tuple(elr)), "broker 1")
    )


COMMITTED = ("committed", KEY, 1, 1, [batch(0, 4)], 0)


def elected(*held: BatchSeen, log_start: int = 0, epoch: int = 2) -> Callable[[], Found]:
    return cluster(COMMITTED, ("elected", KEY, 2, epoch, log_start, {each.base_offset: each for each in held}))


def votes(*facts: Say) -> Callable[[], Found]:
    return judge_of(VoteRules, *facts)


def durable(*indexes: int, voters: int = 3) -> Callable[[], Found]:
    """The leader counts the entry 7 as committed; the first voters have this much of the log on their disks."""
    facts: list[Say] = [("durable", node, index) for node, index in enumerate(indexes)]
    return judge_of(CommitRules, *facts, ("committed", 0, 7, 2, dict.fromkeys(range(voters), 2)))


def cleaned(*held: int, start: int = 0, end: int = 9, written: Sequence[int] = (3,)) -> Callable[[], Found]:
    def make(violated: Callable[[str, str], None]) -> CompactionRules:
        rules = CompactionRules(violated)
        for offset in written:
            rules.committed(KEY, offset, b"a", is_tombstone=False)
        return rules

    return judge_of(make, ("cleaned", KEY, 1, start, end, held))


def deleted(start: int = 5, size: int = 100, kept: int = 100) -> Callable[[], Found]:
    named = {"log_start": start, "watermark": 5, "size_bytes": size, "retention_bytes": kept}
    return judge_of(RetentionRules, ("deleted", KEY, 1, named))


def session(until: float, *, step: float = 1.0, heard: float = 0.0) -> Callable[[], Found]:
    """A broker is silent from 0 s on; the controller gets on in steps, the last of which is at ``until``."""
    times = [step * number for number in range(int(until / step) + 1)]
    facts: list[Say] = [("broker_heard", heard, 7)]
    facts += [("controller_gets_on", now, 1, 1, {7: "is down"}, [7]) for now in (*times, until)]
    return judge_of(lambda violated: SessionRules(violated, 5.0), *facts)


def producer(*batches: tuple[int, int], producer_id: int = 0) -> Callable[[], Found]:
    """Batches of one record, by epoch and sequence number."""
    facts: list[Say] = [
        ("committed", KEY, offset, ProducerBatch(producer_id, epoch, sequence, sequence, False))
        for offset, (epoch, sequence) in enumerate(batches)
    ]
    return judge_of(ProducerRules, *facts)


def group(*facts: Say) -> Callable[[], Found]:
    return judge_of(GroupRules, *facts)


def transactions(*facts: Say) -> Callable[[], Found]:
    return judge_of(TransactionRules, *facts)


def ended(epoch: int, before: int = 3, *, prepared: str = "PrepareCommit") -> Callable[[], Found]:
    return transactions(
        ("state", "x", "Ongoing", 1, before, {}), ("state", "x", prepared, 1, epoch, {"has_own_epoch": True})
    )


def epochs(*entries: tuple[int, int]) -> Callable[[], Found]:
    """The leader epochs of a log from 5 to 9."""
    return judge_of(EpochRules, ("began", KEY, 1, 5, 9, entries))


def copied(watermark: int, replicated: int) -> Callable[[], Found]:
    """The high watermark of a log from 5 to 9, and that of its replica."""
    log = SimpleNamespace(
        failed=False,
        watermarks=SimpleNamespace(high_watermark=watermark),
        log_start_offset=5,
        log_end_offset=9,
    )
    partition = cast("Any", SimpleNamespace(log=log, replica=SimpleNamespace(high_watermark=replicated)))
    return judge_of(WatermarkRules, ("compare", KEY, 1, partition))


def believed(watermark: int, known: int, last: int) -> Callable[[], Found]:
    return judge_of(WatermarkRules, ("believed", KEY, 1, watermark, known, lambda: last))


PREPARED: tuple[Say, ...] = ("state", "x", "Ongoing", 1, 0, {}), ("state", "x", "PrepareCommit", 1, 0, {})
CLUSTER_BORDERS = (
    Border(
        "one-controller",
        "the epoch",
        cluster(("controller_active", 1, 4), ("controller_active", 2, 4)),
        cluster(("controller_active", 1, 4), ("controller_active", 2, 5)),
    ),
    Border(
        "metadata-prefix",
        "the index",
        cluster(("metadata_committed", 1, 4, 1, 7), ("metadata_committed", 2, 4, 1, 8)),
        cluster(("metadata_committed", 1, 4, 1, 7), ("metadata_committed", 2, 5, 1, 8)),
    ),
    Border("partition-state", "the leader is in sync", state(2), state(1)),
    Border("partition-state", "the broker with the lowest id", state(0, isr=(1,)), state(-1, isr=(1,))),
    Border("partition-state", "the replicas", state(isr=(0, 3)), state(isr=(0, 1, 2), elr=())),
    Border("partition-state", "the eligible replicas", state(isr=(0,), elr=(3,)), state(-1, isr=(), elr=(0, 1, 2))),
    Border("partition-state", "in sync and eligible", state(isr=(0, 1), elr=(1,)), state(isr=(0, 1), elr=(2,))),
    Border(
        "one-leader",
        "the epoch",
        cluster(("leader", KEY, 4, 0), ("leader", KEY, 4, 1)),
        cluster(("leader", KEY, 4, 0), ("leader", KEY, 5, 1)),
    ),
    Border(
        "one-leader",
        "a state",
        cluster(("leader", KEY, 1, 1), ("partition_state", KEY, 1, PartitionState(0, 1, (0,), (0,), ()), "")),
        state(),
    ),
    Border(
        "watermark-monotone",
        "the same high watermark",
        cluster(("leader_watermark", KEY, 1, 1, 4, 7), ("leader_watermark", KEY, 1, 1, 4, 6)),
        cluster(("leader_watermark", KEY, 1, 1, 4, 7), ("leader_watermark", KEY, 1, 1, 4, 7)),
    ),
    Border(
        "log-agreement",
        "a gap",
        cluster(COMMITTED, ("committed", KEY, 2, 1, [batch(6, 9)], 5)),
        cluster(COMMITTED, ("committed", KEY, 2, 1, [batch(5, 9)], 5)),
    ),
    Border(
        "log-agreement",
        "the content",
        cluster(COMMITTED, ("committed", KEY, 2, 1, [batch(0, 4, crc=8)], 0)),
        cluster(COMMITTED, ("committed", KEY, 2, 1, [batch(0, 4)], 0)),
    ),
    Border(
        "log-agreement",
        "the end of the last batch",
        cluster(COMMITTED, ("committed", KEY, 2, 1, [batch(4, 9)], 4)),
        cluster(COMMITTED, ("committed", KEY, 2, 1, [batch(5, 9)], 5)),
    ),
    Border("leader-completeness", "the log start offset", elected(log_start=4), elected(log_start=5)),
    Border("leader-completeness", "the epoch", elected(epoch=1), elected(epoch=0)),
    Border("leader-completeness", "the content", elected(batch(0, 4, crc=8)), elected(batch(0, 4))),
    Border(
        "leader-completeness",
        "the end of a cleaned log",
        cluster(("committed_to", KEY, 1, 5), ("leader_ends", KEY, 2, 1, 4)),
        cluster(("committed_to", KEY, 1, 5), ("leader_ends", KEY, 2, 1, 5)),
    ),
    Border("isr-holds", "the end", cluster(("isr_holds", KEY, 1, 5, 2, 4)), cluster(("isr_holds", KEY, 1, 5, 2, 5))),
    Border(
        "acked-is-committed",
        "the end",
        cluster(COMMITTED, ("acknowledged", KEY, 5)),
        cluster(COMMITTED, ("acknowledged", KEY, 4)),
    ),
    Border(
        "acked-is-committed",
        "the high watermark",
        cluster(("leader_watermark", KEY, 1, 1, 4, 7), ("acknowledged_at", "t", 0, 7)),
        cluster(("leader_watermark", KEY, 1, 1, 4, 7), ("acknowledged_at", "t", 0, 6)),
    ),
)
RULE_BORDERS = (
    Border(
        "one-vote",
        "the epoch",
        votes(("promised", 1, 3, 2), ("promised", 1, 3, 1)),
        votes(("promised", 1, 3, 2), ("promised", 1, 4, 1)),
    ),
    Border(
        "one-vote",
        "a vote",
        votes(("promised", 1, 3, 0), ("promised", 1, 3, 1)),
        votes(("promised", 1, 3, NO_VOTE), ("promised", 1, 3, 1)),
    ),
    Border(
        "vote-kept",
        "the epoch",
        votes(("promised", 1, 3, 2), ("started", 1, 2, 2)),
        votes(("promised", 1, 3, 2), ("started", 1, 3, 2)),
    ),
    Border("committed-is-durable", "the majority of three", durable(7), durable(7, 7)),
    Border("committed-is-durable", "the majority of four", durable(7, 7, voters=4), durable(7, 7, 7, voters=4)),
    Border("committed-is-durable", "the index", durable(7, 6), durable(7, 7)),
    Border("compaction-keeps", "the last of the key", cleaned(3, written=(3, 4)), cleaned(4, written=(3, 4))),
    Border("compaction-keeps", "the log start offset", cleaned(start=3), cleaned(start=4)),
    Border("compaction-keeps", "the log end offset", cleaned(end=4), cleaned(end=3)),
    Border("retention-keeps", "the high watermark", deleted(start=6), deleted(start=5)),
    Border("retention-keeps", "the bytes to keep", deleted(size=99), deleted(size=100)),
    Border("retention-keeps", "nothing left", deleted(size=0), deleted(size=-1)),
    Border("session-timeout-enforced", "the bound", session(BOUND + 0.001), session(BOUND)),
    Border(
        "session-timeout-enforced", "the last sign", session(BOUND + 0.501, heard=0.5), session(BOUND + 0.5, heard=0.5)
    ),
    Border(
        "session-timeout-enforced",
        "a pause of the controller",
        session(7 * GAP_SECONDS, step=GAP_SECONDS),
        session(7 * GAP_SECONDS + 7, step=GAP_SECONDS + 1),
    ),
    Border("producer-sequence", "the next number", producer((0, 5), (0, 7)), producer((0, 5), (0, 6))),
    Border(
        "producer-sequence", "the greatest number", producer((0, 0x7FFFFFFF), (0, 1)), producer((0, 0x7FFFFFFF), (0, 0))
    ),
    Border("producer-sequence", "the first id", producer((0, 5), (0, 5)), producer((0, 5), (0, 5), producer_id=-1)),
    Border("producer-sequence", "a new epoch", producer((0, 5), (1, 6)), producer((0, 5), (1, 0))),
    Border("producer-epoch", "the same epoch", producer((1, 0), (0, 1)), producer((1, 0), (1, 1))),
    Border(
        "one-owner",
        "the generation",
        group(("generation", "g", 4, {"a": [P]}), ("generation", "g", 4, {"b": [P]})),
        group(("generation", "g", 4, {"a": [P]}), ("generation", "g", 5, {"b": [P]})),
    ),
    Border(
        "generation-monotone",
        "the same generation",
        group(("generation", "g", 4, {}), ("generation", "g", 3, {})),
        group(("generation", "g", 4, {}), ("generation", "g", 4, {})),
    ),
    Border(
        "offset-kept",
        "the offset at the begin",
        group(("offset", "g", P, 7), ("generation", "g", 0, {"a": [P]}), ("offset", "g", P, 6)),
        group(("offset", "g", P, 7), ("generation", "g", 0, {"a": [P]}), ("offset", "g", P, 7)),
    ),
    Border(
        "offset-kept",
        "within a generation",
        group(("generation", "g", 1, {}), ("offset", "g", P, 7), ("generation", "g", 2, {}), ("offset", "g", P, 6)),
        group(("generation", "g", 1, {}), ("offset", "g", P, 7), ("generation", "g", 1, {}), ("offset", "g", P, 6)),
    ),
    Border(
        "transaction-state",
        "the next state",
        transactions(*PREPARED, ("state", "x", "CompleteAbort", 1, 0, {})),
        transactions(*PREPARED, ("state", "x", "CompleteCommit", 1, 0, {})),
    ),
    Border(
        "transaction-state",
        "the epoch",
        transactions(("state", "x", "Empty", 1, 4, {}), ("state", "x", "Ongoing", 1, 3, {})),
        transactions(("state", "x", "Empty", 1, 4, {}), ("state", "x", "Ongoing", 1, 4, {})),
    ),
    Border("transaction-epoch", "the next epoch", ended(3), ended(4)),
    Border(
        "transaction-epoch",
        "an abort by a new producer",
        ended(6, prepared="PrepareAbort"),
        ended(5, prepared="PrepareAbort"),
    ),
    Border("transaction-epoch", "the last epoch", ended(EPOCH_MAX + 1, EPOCH_MAX), ended(EPOCH_MAX, EPOCH_MAX)),
    Border(
        "transaction-outcome",
        "the decision",
        transactions(*PREPARED, ("marker", "t-0", 1, {"is_commit": False})),
        transactions(*PREPARED, ("marker", "t-0", 1, {"is_commit": True})),
    ),
    Border("epochs-in-log", "the log start offset", epochs((1, 4)), epochs((1, 5))),
    Border("epochs-in-log", "the log end offset", epochs((1, 10)), epochs((1, 9))),
    Border("epochs-in-log", "the next epoch", epochs((1, 5), (1, 6)), epochs((1, 5), (2, 6))),
    Border("epochs-in-log", "the next start", epochs((1, 5), (2, 5)), epochs((0, 5), (1, 6))),
    Border("log-watermark", "the same", copied(7, 8), copied(7, 7)),
    Border("log-watermark", "the log start offset", copied(4, 4), copied(5, 4)),
    Border("log-watermark", "the log end offset", copied(10, 10), copied(9, 10)),
    Border("watermark-known", "the highest of all", believed(8, 7, 7), believed(7, 7, 7)),
    Border("watermark-known", "the last of one that is gone", believed(9, 7, 8), believed(8, 7, 8)),
)
BORDERS = (*CLUSTER_BORDERS, *RULE_BORDERS)
