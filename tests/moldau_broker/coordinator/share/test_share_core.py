"""Goal: the share coordinator keeps the state of share-partitions as Kafka's does, and fences old leaders and states.

Method: the pure core with a driver that commits, refuses or loses its writes. Error codes are those of Kafka 4.2.
"""

from dataclasses import replace
from itertools import product

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from moldau_broker.coordinator.runtime.effects import Append
from moldau_broker.coordinator.share.core import share_core
from moldau_broker.coordinator.share.core.config import ShareConfig
from moldau_broker.coordinator.share.core.pruning import Snapshots
from moldau_broker.coordinator.share.core.records import change_record, parse_change
from moldau_broker.coordinator.share.core.requests import (
    Delete,
    Initialize,
    KeyAnswer,
    Read,
    Summarize,
    codes_of,
    joined,
    response_of,
)
from moldau_broker.coordinator.share.core.share_core import WRITE_RECORDS_MAX
from moldau_broker.coordinator.share.core.state import SharePartitionKey, ShareState, Snapshot, Update
from support.coordinator.share_world import ShareDriver, T, batches_of, key, write

BEGIN = Initialize(state_epoch=0, start_offset=-1)


def begun(config: ShareConfig | None = None, **options: bool) -> ShareDriver:
    driver = ShareDriver(config, **options)
    assert driver.send((key(), BEGIN)) == 0
    driver.commit()
    assert driver.codes(0) == [ErrorCode.NONE]
    return driver


def snapshots_in(driver: ShareDriver) -> list[bool]:
    return [isinstance(parse_change(*record), Snapshot) for record in driver.log]


def test_a_state_must_begin_before_it_is_used() -> None:
    driver = ShareDriver()
    assert driver.code(Read(leader_epoch=0)) is ErrorCode.INVALID_REQUEST
    assert driver.code(write((0, 10, 0, 1))) is ErrorCode.INVALID_REQUEST
    summary = driver.ask(Summarize())
    assert (summary.error_code, summary.start_offset, summary.state_epoch, summary.leader_epoch) == (0, -1, 0, 0)
    assert driver.code(Delete()) is ErrorCode.NONE
    assert not driver.log


def test_writes_join_and_a_read_returns_them() -> None:
    driver = begun()
    assert driver.code(write((0, 10, 0, 1), start=0, count=11)) is ErrorCode.NONE
    assert driver.code(write((11, 20, 0, 1), count=21)) is ErrorCode.NONE
    found = driver.ask(Read(leader_epoch=0))
    assert (found.start_offset, found.state_epoch, batches_of(found)) == (0, 0, [(0, 20, 0, 1)])
    assert driver.ask(Summarize()).delivery_complete_count == 21


def test_a_batch_between_two_others_is_kept() -> None:
    """Kafka's own case: the start offset moves while the batch behind it is still acquired."""
    driver = begun(ShareConfig(updates_per_snapshot=0))
    driver.ask(write((100, 109, 0, 1), (110, 119, 0, 2), (120, 129, 0, 0), start=100))
    driver.ask(write((100, 109, 2, 1), count=10))
    driver.ask(write((120, 129, 2, 1), start=110, count=10))
    assert batches_of(driver.ask(Read(leader_epoch=0))) == [(110, 119, 0, 2), (120, 129, 2, 1)]
    assert all(snapshots_in(driver))


def test_old_leaders_are_fenced_by_a_read() -> None:
    driver = begun()
    assert driver.code(Read(leader_epoch=5)) is ErrorCode.NONE
    assert driver.code(write((0, 1, 2, 1), leader_epoch=4)) is ErrorCode.FENCED_LEADER_EPOCH
    assert driver.code(Read(leader_epoch=4)) is ErrorCode.FENCED_LEADER_EPOCH
    driver.fail_over()
    assert driver.code(write((0, 1, 2, 1), leader_epoch=4)) is ErrorCode.FENCED_LEADER_EPOCH
    assert driver.code(write((0, 1, 2, 1), leader_epoch=5)) is ErrorCode.NONE


def test_old_states_are_fenced_by_a_new_beginning() -> None:
    driver = begun()
    driver.ask(write((5, 9, 2, 1), start=5))
    assert driver.code(Initialize(state_epoch=3, start_offset=2)) is ErrorCode.NONE
    assert driver.code(write((5, 9, 2, 1), state_epoch=0)) is ErrorCode.FENCED_STATE_EPOCH
    assert driver.code(Initialize(state_epoch=2, start_offset=7)) is ErrorCode.FENCED_STATE_EPOCH
    found = driver.ask(Read(leader_epoch=0))
    assert (found.state_epoch, found.start_offset, batches_of(found)) == (3, 2, [])


def test_old_leaders_stay_fenced_after_a_new_beginning() -> None:
    """An administrator sets an offset; the state is new, and the leader that read the former one still leads."""
    driver = begun()
    driver.ask(Read(leader_epoch=5))
    assert driver.code(Initialize(state_epoch=3, start_offset=2)) is ErrorCode.NONE
    assert driver.code(write((2, 4, 2, 1), leader_epoch=4, state_epoch=3)) is ErrorCode.FENCED_LEADER_EPOCH
    assert driver.code(Read(leader_epoch=4)) is ErrorCode.FENCED_LEADER_EPOCH
    assert driver.code(write((2, 4, 2, 1), leader_epoch=5, state_epoch=3)) is ErrorCode.NONE


def test_a_leader_writes_no_state_that_it_has_not_read() -> None:
    """A group that was deleted and made again has the same epochs, and its leader may not have heard of that."""
    driver = begun()
    driver.ask(Read(leader_epoch=5))
    assert driver.code(write((0, 9, 2, 1), start=10, leader_epoch=5)) is ErrorCode.NONE
    driver.ask(Delete())
    driver.ask(BEGIN)
    driver.fail_over()
    assert driver.code(write((10, 19, 2, 1), start=20, leader_epoch=5)) is ErrorCode.FENCED_STATE_EPOCH
    assert driver.ask(Read(leader_epoch=5)).start_offset == -1
    assert driver.code(write((0, 4, 2, 1), start=5, leader_epoch=5)) is ErrorCode.NONE
    assert driver.ask(Summarize()).start_offset == 5


def test_a_repeated_beginning_keeps_what_was_delivered() -> None:
    """The group coordinator repeats a request whose answer it missed; the leader may have written meanwhile."""
    driver = begun()
    driver.ask(write((0, 4, 2, 1), start=0))
    assert driver.code(BEGIN) is ErrorCode.NONE
    assert batches_of(driver.ask(Read(leader_epoch=0))) == [(0, 4, 2, 1)]


def test_a_repeated_beginning_with_the_first_record_too() -> None:
    driver = begun()
    driver.ask(write((5, 9, 2, 1), start=5))
    assert driver.code(Initialize(state_epoch=0, start_offset=0)) is ErrorCode.NONE
    found = driver.ask(Read(leader_epoch=0))
    assert (found.start_offset, batches_of(found)) == (5, [(5, 9, 2, 1)])
    assert driver.code(Initialize(state_epoch=1, start_offset=0)) is ErrorCode.NONE, "an administrator's"
    assert driver.ask(Read(leader_epoch=0)).start_offset == 0


def test_a_late_write_counts_what_is_stored_already() -> None:
    """It was sent before the start offset moved: what it says about later records joins what is known of them."""
    driver = begun()
    driver.ask(write((12, 14, 2, 1), start=10, count=3))
    assert driver.code(write((20, 21, 2, 1), start=5, count=7)) is ErrorCode.NONE
    summary = driver.ask(Summarize())
    assert (summary.start_offset, summary.delivery_complete_count) == (10, 5)


def test_a_late_write_before_a_hole_is_counted_in_32_bits() -> None:
    """Compaction has left a hole of more than 2^31 offsets, which counts as delivered."""
    driver = begun()
    most = (1 << 31) - 1
    driver.ask(write((12, 1 << 32, 4, 0), start=10, count=most))
    assert driver.code(write((5, 9, 2, 1), start=5, count=5)) is ErrorCode.NONE
    summary = driver.ask(Summarize())
    assert (summary.start_offset, summary.delivery_complete_count) == (10, most)


def test_unknown_and_malformed_partitions_are_refused() -> None:
    driver = begun()
    for ask in (BEGIN, Read(leader_epoch=0), write(), Delete(), Summarize()):
        assert driver.code(ask, key(10)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert driver.code(ask, key(-1)) is ErrorCode.INVALID_REQUEST
    for bad in ((5, 4, 0, 1), (-2, 4, 0, 1), (0, 4, 0, -1), (0, 4, -1, 1)):
        assert driver.code(write(bad)) is ErrorCode.INVALID_REQUEST
    assert driver.code(Initialize(state_epoch=-1, start_offset=-1), key(1)) is ErrorCode.INVALID_REQUEST
    assert driver.code(Initialize(state_epoch=0, start_offset=-2), key(1)) is ErrorCode.INVALID_REQUEST


def test_a_deleted_state_can_begin_again() -> None:
    driver = begun()
    driver.ask(Read(leader_epoch=7))
    assert driver.code(Delete()) is ErrorCode.NONE
    assert driver.code(Read(leader_epoch=7)) is ErrorCode.INVALID_REQUEST
    assert driver.code(BEGIN) is ErrorCode.NONE
    assert driver.code(Read(leader_epoch=1)) is ErrorCode.NONE


def test_every_so_many_updates_a_snapshot_follows() -> None:
    driver = begun(ShareConfig(updates_per_snapshot=2))
    for offset in range(5):
        driver.ask(write((offset, offset, 2, 1), leader_epoch=-1))
    assert snapshots_in(driver) == [True, False, False, True, False, False]
    driver.fail_over()
    driver.ask(write((9, 9, 2, 1)))
    assert snapshots_in(driver)[-1]
    assert batches_of(driver.ask(Read(leader_epoch=-1))) == [(0, 4, 2, 1), (9, 9, 2, 1)]


def test_a_snapshot_contains_writes_that_are_not_committed_yet() -> None:
    driver = begun(ShareConfig(updates_per_snapshot=1), auto_commit=False)
    for offset in range(4):
        driver.send((key(), write((offset, offset, 2, 1), leader_epoch=-1)))
    driver.commit()
    assert snapshots_in(driver) == [True, False, True, False, True]
    driver.fail_over()
    answer = driver.send((key(), Read(leader_epoch=-1)))
    assert batches_of(driver.answers[answer][key()]) == [(0, 3, 2, 1)]


@pytest.mark.parametrize("committed", [0, 1, 2])
def test_writes_that_follow_a_committed_one_count(committed: int) -> None:
    """Writes of one share-partition are committed one by one, and the next ones are decided on all of them."""
    driver = begun(ShareConfig(updates_per_snapshot=3), auto_commit=False)
    driver.send((key(), Read(leader_epoch=5)))
    for offset in range(2):
        driver.send((key(), write((offset, offset, 2, 1), leader_epoch=5)))
    driver.commit(committed)
    read = driver.send((key(), Read(leader_epoch=5)))
    assert read not in driver.answers, "it waits for the last of them"
    assert driver.codes(driver.send((key(), Read(leader_epoch=4)))) == [ErrorCode.FENCED_LEADER_EPOCH]
    driver.send((key(), write((2, 2, 2, 1), leader_epoch=5)))
    driver.commit()
    assert batches_of(driver.answers[read][key()]) == [(0, 1, 2, 1)]
    assert snapshots_in(driver) == [True, False, False, False, True]
    driver.fail_over()
    read = driver.send((key(), Read(leader_epoch=5)))
    assert batches_of(driver.answers[read][key()]) == [(0, 2, 2, 1)]


def test_a_read_waits_for_the_writes_that_it_shows() -> None:
    driver = begun(auto_commit=False)
    wrote = driver.send((key(), write((0, 3, 2, 1), leader_epoch=-1)))
    read = driver.send((key(), Read(leader_epoch=-1)))
    assert {wrote, read} & set(driver.answers) == set()
    summary = driver.send((key(), Summarize()))
    assert driver.codes(summary) == [ErrorCode.NONE]
    driver.commit()
    assert batches_of(driver.answers[read][key()]) == [(0, 3, 2, 1)]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_nothing_is_acknowledged_before_its_commit(length: int) -> None:
    """All short sequences of requests about one share-partition, while none of their writes is committed.

    A repetition of what is being written waits too: a failover could undo what it confirms.
    """
    asks = [
        BEGIN,
        Initialize(state_epoch=1, start_offset=5),
        write((0, 3, 2, 1)),
        Read(leader_epoch=-1),
        Read(leader_epoch=2),
        Delete(),
    ]
    for sequence in product(asks, repeat=length):
        driver = begun(auto_commit=False)
        for ask in sequence:
            sent = driver.send((key(), ask))
            is_acknowledged = sent in driver.answers and driver.codes(sent) == [ErrorCode.NONE]
            assert not (is_acknowledged and driver.uncommitted), sequence
        driver.commit()
        assert len(driver.answers) == driver.request_count, sequence


def test_a_read_of_a_lost_write_fails_with_it() -> None:
    driver = begun(auto_commit=False)
    driver.send((key(), write((0, 3, 2, 1), leader_epoch=-1)))
    read = driver.send((key(), Read(leader_epoch=-1)))
    driver.fail_over()
    assert driver.codes(read) == [ErrorCode.NOT_COORDINATOR]


def test_a_refused_write_leaves_no_trace() -> None:
    driver = begun(auto_commit=False)
    first = driver.send((key(), write((0, 0, 2, 1))))
    refused = driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS, (key(), write((1, 1, 2, 1))))
    assert driver.codes(refused) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    driver.commit()
    assert driver.codes(first) == [ErrorCode.NONE]
    read = driver.send((key(), Read(leader_epoch=-1)))
    assert batches_of(driver.answers[read][key()]) == [(0, 0, 2, 1)]
    too_large = driver.refuse(ErrorCode.MESSAGE_TOO_LARGE, (key(), write((1, 1, 2, 1))))
    assert driver.codes(too_large) == [ErrorCode.UNKNOWN_SERVER_ERROR]


def test_a_refused_write_takes_no_earlier_ones_along() -> None:
    """Several are on their way to commit: a later snapshot has them all."""
    driver = begun(ShareConfig(updates_per_snapshot=2), auto_commit=False)
    for offset in (0, 2):
        driver.send((key(), write((offset, offset, 2, 1), leader_epoch=-1)))
    driver.refuse(ErrorCode.MESSAGE_TOO_LARGE, (key(), write((4, 4, 2, 1), leader_epoch=-1)))
    for offset in (6, 8):
        driver.send((key(), write((offset, offset, 2, 1), leader_epoch=-1)))
    driver.commit()
    assert any(snapshots_in(driver)[1:])
    driver.fail_over()
    answer = driver.send((key(), Read(leader_epoch=-1)))
    assert [first for first, *_ in batches_of(driver.answers[answer][key()])] == [0, 2, 6, 8]


def test_a_write_that_takes_too_long_is_answered() -> None:
    driver = begun(auto_commit=False)
    slow = driver.send((key(), write((0, 3, 2, 1))))
    driver.pass_time(5_000)
    assert driver.codes(slow) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    driver.commit()
    read = driver.send((key(), Read(leader_epoch=-1)))
    assert batches_of(driver.answers[read][key()]) == [(0, 3, 2, 1)]


def test_a_read_behind_a_late_write_is_answered() -> None:
    """A write whose requests have timed out may still be committed: a read of it waits, but not for ever."""
    driver = begun(auto_commit=False)
    driver.send((key(), write((0, 10, 0, 1), start=0)))
    driver.pass_time(driver.config.write_timeout_ms)
    read = driver.send((key(), Read(leader_epoch=-1)))
    driver.pass_time(driver.config.write_timeout_ms - 1)
    assert read not in driver.answers
    driver.pass_time(1)
    assert driver.codes(read) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    driver.commit()
    assert driver.code(Read(leader_epoch=-1)) is ErrorCode.NONE


def test_pending_writes_are_bounded() -> None:
    driver = begun(ShareConfig(appends_pending_max=2), auto_commit=False)
    for offset in range(2):
        driver.send((key(), write((offset, offset, 2, 1))))
    refused = driver.send((key(), write((2, 2, 2, 1))))
    assert driver.codes(refused) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_a_request_about_many_partitions_is_answered_whole() -> None:
    driver = ShareDriver(auto_commit=False)
    driver.topics.counts["t"] = 3 * WRITE_RECORDS_MAX
    asked = driver.send(*[(key(partition), BEGIN) for partition in range(3 * WRITE_RECORDS_MAX)])
    assert len(driver.uncommitted) == 3
    driver.commit(2)
    assert asked not in driver.answers
    driver.commit()
    assert driver.codes(asked) == [ErrorCode.NONE] * 3 * WRITE_RECORDS_MAX


def test_states_of_deleted_topics_go() -> None:
    driver = begun()
    driver.ask(BEGIN, key(1))
    del driver.topics.ids["t"]
    driver.perform(driver.core.topics_deleted(driver.moment()))
    assert not driver.core.states
    assert [value for _, value in driver.log[2:]] == [None, None]


def test_a_state_that_begins_while_its_topic_goes_is_deleted() -> None:
    """Its first record is written and not committed yet: the tombstone follows it."""
    driver = ShareDriver(auto_commit=False)
    driver.send((key(0), BEGIN))
    del driver.topics.ids["t"]
    driver.perform(driver.core.topics_deleted(driver.moment()))
    driver.commit(2)
    assert not driver.core.states
    assert [value is None for _, value in driver.log] == [False, True]
    driver.perform(driver.core.topics_deleted(driver.moment()))
    assert len(driver.log) == 2, "once is enough"


def test_a_topic_deleted_without_a_coordinator_goes_too() -> None:
    driver = begun()
    del driver.topics.ids["t"]
    driver.fail_over()
    assert not driver.core.states


def test_redundant_records_are_deleted() -> None:
    """The log keeps the last snapshot of each share-partition and what follows; a failover reads the same from it."""
    config = ShareConfig(updates_per_snapshot=1, prune_interval_ms=1_000, cold_interval_ms=1_000_000)
    driver = begun(config)
    driver.ask(BEGIN, key(1))
    for offset in range(6):
        driver.ask(write((offset, offset, 2, 1), leader_epoch=-1))
    driver.pass_time(1_000)
    assert driver.start_offset == 1, "the second share-partition has its only snapshot there"
    driver.ask(Delete(), key(1))
    driver.pass_time(1_000)
    assert driver.start_offset == 7
    driver.fail_over()
    assert batches_of(driver.ask(Read(leader_epoch=-1))) == [(0, 5, 2, 1)]


def test_cold_snapshots_are_written_again_but_not_for_ever() -> None:
    config = ShareConfig(updates_per_snapshot=1, prune_interval_ms=1_000, cold_interval_ms=10_000)
    driver = begun(config)
    driver.ask(BEGIN, key(1))
    driver.pass_time(5_000)
    for offset in range(4):
        driver.ask(write((offset, offset, 2, 1), leader_epoch=-1))
    driver.pass_time(6_000)
    assert driver.start_offset > 2
    driver.pass_time(30_000)
    size = len(driver.log)
    driver.pass_time(300_000)
    assert len(driver.log) == size
    driver.fail_over()
    assert batches_of(driver.ask(Read(leader_epoch=-1))) == [(0, 3, 2, 1)]
    assert driver.ask(Read(leader_epoch=-1), key(1)).error_code == 0


def test_a_cold_snapshot_waits_for_the_write_in_flight() -> None:
    """Behind that write in the log it would take back what the write says."""
    driver = begun(ShareConfig(cold_interval_ms=4_000), auto_commit=False)
    driver.send((key(), write((0, 4, 2, 1))))
    driver.pass_time(4_500)
    driver.commit()
    driver.fail_over()
    driver.auto_commit = True
    assert batches_of(driver.ask(Read(leader_epoch=-1))) == [(0, 4, 2, 1)]


def test_a_state_with_updates_is_repeated_again() -> None:
    """A snapshot that only repeated the state is cold as well, once updates follow it in the log."""
    driver = begun(ShareConfig(prune_interval_ms=1_000, cold_interval_ms=10_000))
    driver.pass_time(30_000)
    for offset in range(3):
        driver.ask(write((offset, offset, 2, 1), leader_epoch=-1))
    assert driver.start_offset < len(driver.log) - 1
    driver.pass_time(30_000)
    assert driver.start_offset == len(driver.log) - 1


def test_a_deletion_that_the_log_refuses_is_repeated() -> None:
    """No request asks for it: the topic is gone."""
    driver = begun(auto_commit=False)
    del driver.topics.ids["t"]
    (append,) = driver.core.topics_deleted(driver.moment())
    assert isinstance(append, Append)
    driver.perform(driver.core.failed(append.append_id, ErrorCode.NOT_ENOUGH_REPLICAS, driver.moment()))
    driver.pass_time(driver.config.retry_ms)
    driver.commit()
    assert not driver.core.states


def test_records_have_kafkas_bytes() -> None:
    """Golden bytes, written by hand from Kafka's ShareSnapshot and ShareUpdate schemas."""
    where = key(3)
    state = ShareState(
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=4,
        delivery_complete_count=5,
        create_ms=6,
        write_ms=7,
        batches=tuple(write((8, 9, 2, 1)).batches),
    )
    record = change_record(Snapshot(key=where, state=state))
    name = b"\x00\x01g" + T.bytes + b"\x00\x00\x00\x03"
    batch = b"\x02" + bytes(7) + b"\x08" + bytes(7) + b"\x09\x02\x00\x01\x00"
    assert record.key == b"\x00\x00" + name
    assert record.value == (
        b"\x00\x00"
        + b"\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03"
        + b"".join(number.to_bytes(8, "big") for number in (4, 6, 7))
        + batch
        + b"\x01\x00\x04\x00\x00\x00\x05"
    )
    update = Update(
        key=where, snapshot_epoch=1, leader_epoch=3, start_offset=-1, delivery_complete_count=-1, batches=state.batches
    )
    record = change_record(update)
    assert record.key == b"\x00\x01" + name
    assert record.value == b"\x00\x00\x00\x00\x00\x01\x00\x00\x00\x03" + b"\xff" * 8 + batch + b"\x00"
    assert parse_change(record.key, record.value) == update
    assert change_record(Snapshot(key=where, state=None)).value is None


def test_unreadable_records_are_counted() -> None:
    driver = ShareDriver()
    driver.core.replay(b"\x00\x00", b"\x00\x00")
    driver.core.replay(None, b"")
    driver.core.replay(b"\x00\x63", b"")
    assert driver.core.unreadable_records == 2


@pytest.mark.parametrize("text", ["", "g", "g:AAAA:0", f"g:{'A' * 22}:-1", f"g:{'A' * 22}:x", f":{'A' * 22}:0"])
def test_malformed_coordinator_keys_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must have the form|is no"):
        SharePartitionKey.parse(text)


def test_coordinator_keys_have_kafkas_form() -> None:
    text = "my:group:AAAAAAAAAAAAAAAAAAAAAQ:3"
    assert key(3, "my:group").coordinator_key == text
    assert SharePartitionKey.parse(text) == key(3, "my:group")


@pytest.mark.parametrize(("spare_bytes", "writes"), [(0, 1), (-1, 2)])
def test_a_write_is_as_large_as_it_may_be(spare_bytes: int, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger one would be refused by the log, and smaller ones would cost a round to the replicas each."""
    probe = begun()
    probe.ask(Delete())
    record_key, value = probe.log[0]
    size = len(record_key) + len(value or b"")
    monkeypatch.setattr(share_core, "WRITE_BYTES_MAX", 2 * size + spare_bytes)
    driver = ShareDriver(auto_commit=False)
    driver.send((key(0), BEGIN), (key(1), BEGIN))
    assert len(driver.uncommitted) == writes


def test_a_beginning_with_an_offset_is_no_repetition() -> None:
    """Without one it repeats a request whose answer was lost; with one the group's start offset is set again."""
    driver = begun()
    driver.ask(write((5, 9, 2, 1), start=5))
    assert driver.code(BEGIN) is ErrorCode.NONE
    assert driver.ask(Summarize()).start_offset == 5
    assert driver.code(Initialize(state_epoch=0, start_offset=2)) is ErrorCode.NONE
    assert driver.ask(Summarize()).start_offset == 2


def test_nothing_is_done_behind_an_offset_that_is_set() -> None:
    """The lag is known at once; a state without an offset has none until the leader has chosen one."""
    driver = begun()
    assert driver.ask(Summarize()).delivery_complete_count == -1
    assert driver.code(Initialize(state_epoch=1, start_offset=2)) is ErrorCode.NONE
    assert driver.ask(Summarize()).delivery_complete_count == 0


def test_a_log_is_redundant_up_to_its_oldest_state() -> None:
    """Without any state that is all of it."""
    snapshots = Snapshots()
    assert snapshots.redundant_end_offset() == 0
    first, second = key(), key(partition=1)
    state = ShareState(snapshot_epoch=0, state_epoch=0)
    steps = [(first, state, 4), (second, state, 4), (first, state, 4), (second, None, 6), (first, None, 9)]
    for offset, (place, after, end) in enumerate(steps, start=4):
        snapshots.replay(Snapshot(key=place, state=after), offset, after)
        expected = end if offset != 6 else 5
        assert snapshots.redundant_end_offset() == expected
    update = Update(key=first, snapshot_epoch=0, leader_epoch=-1, start_offset=0, delivery_complete_count=0, batches=())
    for offset, updates in ((9, 1), (10, 2)):  # a state that begins with an update
        snapshots.replay(update, offset, replace(state, updates=updates))
        assert snapshots.redundant_end_offset() == 9


def test_answers_of_several_coordinators_become_one() -> None:
    codes = {key(partition=number): ErrorCode(15 * (number % 2)) for number in range(4)}
    each = [
        response_of(InitializeShareGroupStateRequest, {place: KeyAnswer(code=code)}) for place, code in codes.items()
    ]
    assert codes_of("g", joined(InitializeShareGroupStateRequest, each)) == codes


def test_a_code_of_a_newer_coordinator_is_an_error() -> None:
    """While brokers are upgraded, one that knows the code answers another one that does not."""
    response = response_of(InitializeShareGroupStateRequest, {key(): KeyAnswer()})
    response.results[0].partitions[0].error_code = 9_999  # type: ignore[attr-defined]
    assert codes_of("g", response) == {key(): ErrorCode.UNKNOWN_SERVER_ERROR}
