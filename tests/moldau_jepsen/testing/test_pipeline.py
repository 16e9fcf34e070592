"""Goal: a pipeline's history convicts lost and repeated effects, and wrong logs, and nothing else.

Method: small pipelines by hand.
"""

from contextlib import nullcontext
from itertools import product

import pytest

from moldau_jepsen.testing import new_history
from moldau_jepsen.testing.pipeline import PipelineError, PipelineHistory, PipelineVerdict
from moldau_jepsen.testing.scenario import Cluster


def pipeline(effects: list[str]) -> PipelineHistory:
    history = new_history()
    for offset, token in enumerate(["a", "b", "c"]):
        history.sent("t", 0, offset, token)
        history.read("worker", "t", 0, offset, token)
    for token in effects:
        history.took_effect(token)
    return history


def test_each_record_once_is_right() -> None:
    verdict = pipeline(["a", "b", "c"]).check()
    verdict.raise_if_wrong()
    assert verdict.log.valid


@pytest.mark.parametrize("number", range(2))
def test_each_test_begins_with_an_empty_history(number: int, moldau_history: PipelineHistory) -> None:
    assert moldau_history.check().log.figures.operations == 0
    moldau_history.sent("t", 0, number, "x")
    assert moldau_history.check().log.figures.operations == 1


@pytest.fixture
def record_of_a_fixture(moldau_history: PipelineHistory) -> str:
    moldau_history.sent("t", 0, 0, "x")
    return "x"


@pytest.mark.moldau(simulated=True, seeds=[1, 2], brokers=1, controllers=1)
async def test_each_seed_begins_with_the_history_of_fixtures(
    moldau_cluster: Cluster, moldau_history: PipelineHistory, record_of_a_fixture: str
) -> None:
    """The effects of two seeds were called repeated."""
    assert moldau_history.check().lost_effects == (record_of_a_fixture,)
    moldau_history.took_effect(record_of_a_fixture)
    moldau_history.check().raise_if_wrong()


def test_offsets_of_an_old_topic_are_judged() -> None:
    """A topic may have had thousands of millions of records before the test, of which the history has none."""
    history = new_history()
    for offset, token in ((5_000_000_000, "a"), (5_000_000_002, "b")):
        history.sent("t", 0, offset, token)
        history.read("worker", "t", 0, offset, token)
        history.took_effect(token)
    history.check().raise_if_wrong()
    history.read("other", "t", 0, 5_000_000_003, "a")
    with pytest.raises(PipelineError, match="duplicate: value 0 lies at offset 5000000000 and at offset 5000000003"):
        history.check().raise_if_wrong()
    history.read("third", "t", 0, 1 << 63, "b")
    with pytest.raises(PipelineError, match=f"impossible-offset: process 4 polled value 1 at offset {1 << 63} of t-0"):
        history.check().raise_if_wrong()


def test_lost_and_repeated_effects_are_named() -> None:
    verdict = pipeline(["a", "a", "b"]).check()
    assert verdict.lost_effects == ("c",)
    assert verdict.repeated_effects == (("a", 2),)
    with pytest.raises(PipelineError, match="1 acknowledged without effect: 'c'; 1 with repeated effects: 'a' 2 times"):
        verdict.raise_if_wrong()
    with pytest.raises(PipelineError, match="without effect"):
        verdict.raise_if_wrong(at_least_once=True)
    with pytest.raises(PipelineError, match="repeated"):
        verdict.raise_if_wrong(at_most_once=True)
    verdict.raise_if_wrong(at_least_once=True, at_most_once=True)


def test_at_most_once_allows_records_that_no_reader_received() -> None:
    """A reader that restarts behind what it has committed loses the rest of its batch; any other skip is wrong."""

    def worker(*, restarts: bool) -> PipelineVerdict:
        history = new_history()
        for number in range(5):
            history.sent("t", 0, number, number)
        for number in (0, 1, 4):
            if number == 4 and restarts:
                history.restarted("worker")
            history.read("worker", "t", 0, number, number)
            history.took_effect(number)
        return history.check()

    worker(restarts=True).raise_if_wrong(at_most_once=True)
    with pytest.raises(PipelineError, match="2 acknowledged without effect: 2, 3"):
        worker(restarts=True).raise_if_wrong()
    with pytest.raises(PipelineError, match=r"^poll-skip: .* and skipped offset 2$"):
        worker(restarts=False).raise_if_wrong(at_most_once=True)


def test_effects_without_a_record_are_always_wrong() -> None:
    """An effect without a sent record is wrong under every guarantee."""
    verdict = pipeline(["a", "b", "c", "z"]).check()
    with pytest.raises(PipelineError, match="never sent: 'z'"):
        verdict.raise_if_wrong(at_least_once=True, at_most_once=True)


def test_records_of_unknown_outcome_may_have_an_effect_or_none() -> None:
    history = pipeline(["a", "b", "c"])
    history.send_failed("t", 0, "d")
    history.check().raise_if_wrong()
    history.took_effect("d")
    history.check().raise_if_wrong()


def test_the_log_is_judged_too() -> None:
    history = pipeline(["a", "b", "c"])
    history.read("worker", "t", 0, 3, "a")
    with pytest.raises(PipelineError, match="duplicate: value 0 lies at offset 0 and at offset 3"):
        history.check().raise_if_wrong()
    history.check(idempotent=False).raise_if_wrong()
    skipping = new_history()
    for offset in range(3):
        skipping.sent("t", 0, offset, offset)
        skipping.took_effect(offset)
    skipping.read("worker", "t", 0, 0, 0)
    skipping.read("worker", "t", 0, 2, 2)
    with pytest.raises(PipelineError, match="skipped offset 1"):
        skipping.check().raise_if_wrong()
    skipping.restarted("worker")
    skipping.read("worker", "t", 0, 1, 1)
    assert len(skipping.check().log.anomalies) == 1
    ahead = new_history()
    ahead.read("worker", "t", 0, 0, "a")
    ahead.sent("t", 0, 0, "a")
    ahead.took_effect("a")
    ahead.check().raise_if_wrong()


def test_aborted_records_must_not_be_read() -> None:
    history = new_history()
    history.send_failed("t", 0, "x", certain=True)
    history.read("worker", "t", 0, 0, "x")
    with pytest.raises(PipelineError, match="G1a"):
        history.check().raise_if_wrong()


def attempts(*reported: tuple[str, int | None], reads: tuple[int, ...] = (), effects: int = 1) -> PipelineHistory:
    """One record, sent several times: how each ended, and the reported offset."""
    history = new_history()
    for how, offset in reported:
        if how == "acknowledged":
            history.sent("t", 0, offset, "x")
        else:
            history.send_failed("t", 0, "x", certain=how == "aborted")
    for number, offset in enumerate(reads):
        history.read(f"reader {number}", "t", 0, offset, "x")
    for _ in range(effects):
        history.took_effect("x")
    return history


@pytest.mark.parametrize(
    ("reported", "reads"),
    [
        ([("aborted", None), ("acknowledged", 2)], (2,)),
        ([("aborted", None), ("acknowledged", None)], (2,)),
        ([("aborted", None), ("open", None)], (2,)),
        ([("open", None), ("acknowledged", 1)], (0, 1)),
        ([("open", None), ("acknowledged", 1)], (1,)),
        ([("open", None), ("acknowledged", 0)], (0, 1)),
        ([("open", None), ("open", None), ("acknowledged", 5)], (5, 3, 1, 3)),
        ([("acknowledged", 1), ("acknowledged", 1)], (1,)),
    ],
)
def test_each_attempt_that_may_be_in_the_log_may_be_read(reported, reads) -> None:
    """A record may be sent again, and each attempt that may be in the log may be read."""
    attempts(*reported, reads=reads).check().raise_if_wrong()


@pytest.mark.parametrize(
    ("reported", "reads", "wrong"),
    [
        ([("aborted", None), ("acknowledged", 2)], (1, 2), "G1a: value 0"),
        ([("acknowledged", 2), ("aborted", None)], (2, 3), "G1a: value 1"),
        ([("open", None), ("acknowledged", 1)], (0, 1, 2), "duplicate: value 1 lies at offset 1 and at offset 2"),
        ([("open", None)], (0, 1), "duplicate: value 0"),
        ([("acknowledged", None)], (0, 1), "duplicate: value 0"),
    ],
)
def test_more_than_was_sent_is_read(reported, reads, wrong) -> None:
    with pytest.raises(PipelineError, match=wrong):
        attempts(*reported, reads=reads).check().raise_if_wrong()


def test_an_effect_of_a_record_that_failed_for_certain_is_wrong() -> None:
    with pytest.raises(PipelineError, match="1 effects of records that failed: 'x'"):
        attempts(("aborted", None)).check().raise_if_wrong(at_least_once=True, at_most_once=True)
    attempts(("aborted", None), effects=0).check().raise_if_wrong()
    attempts(("aborted", None), ("open", None)).check().raise_if_wrong()
    attempts(("acknowledged", None), ("aborted", None)).check().raise_if_wrong()


def test_reads_of_unsent_records_are_named() -> None:
    history = pipeline(["a", "b", "c"])
    history.read("worker", "t", 0, 3, "never")
    history.read("other", "u", 0, 0, "a")
    verdict = history.check()
    assert [(one.token, one.partition, one.offset) for one in verdict.unknown_reads] == [
        ("never", ("t", 0), 3),
        ("a", ("u", 0), 0),
    ]
    with pytest.raises(PipelineError, match="2 records read that were never sent there: 'never' at offset 3"):
        verdict.raise_if_wrong(at_least_once=True, at_most_once=True)


def test_order_is_expected_of_a_sender_with_a_name() -> None:
    def two(sender: str | None) -> PipelineHistory:
        history = new_history()
        for token, offset in (("b", 1), ("a", 0)):
            history.sent("t", 0, offset, token, sender=sender)
            history.took_effect(token)
        return history

    two(None).check().raise_if_wrong()
    with pytest.raises(PipelineError, match="nonmonotonic-send"):
        two("one").check().raise_if_wrong()
    two("one").check(idempotent=False).raise_if_wrong()


def test_the_order_of_unknown_offsets_is_that_of_reads() -> None:
    """A client that learned no offset sends in order all the same."""

    def two(*read: str) -> PipelineVerdict:
        history = new_history()
        for token in ("a", "b"):
            history.sent("t", 0, None, token, sender="one")
            history.took_effect(token)
        for offset, token in enumerate(read):
            history.read("r", "t", 0, offset, token)
        return history.check()

    for read in ((), ("b",), ("a", "b")):
        two(*read).raise_if_wrong()
    with pytest.raises(PipelineError, match=r"nonmonotonic-send: .* landed at offset 0"):
        two("b", "a").raise_if_wrong()


@pytest.mark.parametrize(
    ("partition", "offset", "text"),
    [
        ("0", 5, "the partition of record 'a' is a number, not '0'"),
        (None, 5, "the partition of record 'a' is a number, not None"),
        (-1, 5, "the partition of record 'a' is -1, and must be 0 or more"),
        (0, "5", "the offset of record 'a' is a number, not '5'"),
        (0, 5.0, "the offset of record 'a' is a number, not 5.0"),
        (0, -1001, "the offset of record 'a' is -1001, .*; say None for a sent record whose offset is unknown"),
    ],
)
def test_a_wrong_place_is_refused_at_once(partition, offset, text):
    """A partition as text made sent and read records different ones, and ``check`` blamed the log."""
    history = new_history()
    with pytest.raises((TypeError, ValueError), match=text):
        history.sent("t", partition, offset, "a")
    with pytest.raises((TypeError, ValueError), match=text):
        history.read("worker", "t", partition, offset, "a")
    if partition not in (0, -1):  # a client reports -1 for a record that failed before it had a partition
        with pytest.raises((TypeError, ValueError), match=text):
            history.send_failed("t", partition, "a")
    history.check().raise_if_wrong()


OUTCOMES = ("ok", "open", "failed")
"""Acknowledged; perhaps in the log; certainly not."""
ATTEMPTS = [chosen for count in range(3) for chosen in product(OUTCOMES, repeat=count)]


def reported(history: PipelineHistory, token: str, attempts: tuple[str, ...], effects: int, offset: int) -> None:
    for number, outcome in enumerate(attempts):
        if outcome == "ok":
            history.sent("t", 0, offset + number, token)
            history.read("worker", "t", 0, offset + number, token)
        else:
            history.send_failed("t", 0, token, certain=outcome == "failed")
    for _ in range(effects):
        history.took_effect(token)


@pytest.mark.parametrize("second", ATTEMPTS)
@pytest.mark.parametrize("first", ATTEMPTS)
def test_effects_are_judged_by_the_attempts_of_their_record(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    """All outcomes of up to two attempts of two records, with up to two effects of each.

    The guarantees allow what they name and nothing else: more effects than one, or none of an acknowledged record.
    """
    for counts in product(range(3), repeat=2):
        history = new_history()
        records = dict(zip("ab", zip((first, second), counts, strict=True), strict=True))
        for offset, (token, (attempts, effects)) in zip((0, 2), records.items(), strict=True):
            reported(history, token, attempts, effects, offset)
        verdict = history.check(idempotent=False)
        lost = [token for token, (attempts, effects) in records.items() if "ok" in attempts and not effects]
        repeated = [(token, effects) for token, (_, effects) in records.items() if effects > 1]
        unknown = [token for token, (attempts, effects) in records.items() if effects and not attempts]
        failed = [token for token, (attempts, effects) in records.items() if effects and {"failed"} == set(attempts)]
        assert list(verdict.lost_effects) == lost
        assert list(verdict.repeated_effects) == repeated
        assert list(verdict.unknown_effects) == unknown
        assert list(verdict.failed_effects) == failed
        for at_least_once, at_most_once in product((False, True), repeat=2):
            is_wrong = unknown or failed or (lost and not at_most_once) or (repeated and not at_least_once)
            with pytest.raises(PipelineError) if is_wrong else nullcontext():
                verdict.raise_if_wrong(at_least_once=at_least_once, at_most_once=at_most_once)


@pytest.mark.parametrize("acks", ["all", "-1", -1, "1", 1, 0, "0"])
@pytest.mark.parametrize("offset", [None, 0, 7])
def test_only_records_of_all_replicas_must_be_committed(acks: str | int, offset: int | None) -> None:
    """The simulation judges each record that was acknowledged by all of them, at the offset that its sender learned."""
    judged: list[tuple[str, int, int]] = []
    history = PipelineHistory(lambda *place: judged.append(place))
    history.sent("t", 2, offset, "a", acks=acks)
    history.send_failed("t", 2, "b")
    assert judged == ([("t", 2, offset)] if str(acks) in ("all", "-1") and offset is not None else [])
    PipelineHistory().sent("t", 2, offset, "a", acks=acks)
