"""Goal: a record that comes back with one bit of its key, value, headers or timestamp changed is convicted.

Method: digests of records that differ in one thing; golden histories by hand.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

from moldau.records import Record
from moldau_jepsen.checkers import AnomalyKind
from moldau_jepsen.history import Kind, Poll, Send
from moldau_jepsen.workloads.phases.final_read import polled
from moldau_jepsen.workloads.recording.payload import digest_of, digest_of_record, number_of, payload_of, says_of
from moldau_jepsen.workloads.recording.recorder import Recorder
from support.kit.golden_histories import P0, P1, Story

K = AnomalyKind
FOREIGN = 1 << 40
"""A value far above all that a workload gives out."""


def test_records_that_differ_in_one_thing_have_different_digests():
    keys, values = (None, b"", b"k", b"kk"), (None, b"", b"v", b"kv")
    headers = (
        (),
        (("", None),),
        (("", b""),),
        (("h", None),),
        (("h", b""),),
        (("h", b"v"),),
        (("hv", b""),),
        (("h", b"v"), ("h", b"w")),
        (("h", b"w"), ("h", b"v")),
    )
    digests = [digest_of(*each) for each in itertools.product((-1, 0, 1, 1 << 40), keys, values, headers)]
    assert len(set(digests)) == len(digests)
    assert all(0 < digest < 1 << 32 for digest in digests)


def test_received_records_have_the_digest_of_the_sent_ones():
    """A record that a consumer receives has the digest of the record that was sent."""
    kinds = set()
    for value in range(200):
        payload = payload_of(value, 1_000 + value, b"says", padding_bytes=3)
        record = Record(7, payload.timestamp, payload.key, payload.value, payload.headers)
        assert digest_of_record(record, timed=True) == payload.digest
        assert digest_of_record(record, timed=False) != payload.digest
        assert number_of(record.value) == value
        assert says_of(record.value)[:4] == b"says"
        kinds.add((payload.key, payload.headers))
    assert len(kinds) == 16, "null, empty and other keys and headers, in all combinations"


def test_without_timestamps_the_rest_of_a_record_is_compared():
    """As where brokers put timestamps of their own on records."""
    clock, reported = SimpleNamespace(wall_ms=lambda: 5_000, monotonic_ms=lambda: 0.0), []
    for timed, value, convicted in ((False, b"", False), (False, b"x", True), (True, b"", True)):
        recorder = Recorder(clock, reported.append, timed=timed)
        payload = recorder.payload(0, b"says")
        sent = Send(P0, 0, 0, payload.digest)
        record = Record(0, 7_777, payload.key, payload.value + value, payload.headers)
        batch = SimpleNamespace(topic=P0.topic, partition=P0.partition, records=[record])
        part = polled([batch], timed=recorder.timed)
        verdict = Story().add(1, Kind.SEND, sent).add(2, Kind.POLL, part, final=True).check()
        assert verdict.counts == ({K.ALTERED: 1} if convicted else {}), (timed, value)


def story(*digests, sent=(11, 12, 13)):
    """Values 0.. with these digests were sent; what comes back is read once on the way and once in the end."""
    reported = Story()
    for value, digest in enumerate(sent):
        reported.add(1, Kind.SEND, Send(P0, value, value, digest))
    pairs = tuple((value, value) for value in range(len(digests)))
    for final in (False, True):
        reported.add(3, Kind.POLL, Poll(((P0, pairs),), (digests,)), final=final)
        reported.add(3, Kind.ASSIGN)
    return reported


def test_a_record_that_comes_back_altered():
    assert story(11, 12, 13).check().counts == {}
    altered = story(11, 99, 13).check()
    assert altered.counts == {K.ALTERED: 1}, "it counts once, however often it is read"
    assert not altered.valid
    assert altered.anomalies[0].text == "the record at offset 1, with value 1, is not as it was sent"
    assert {1, 3} <= set(altered.anomalies[0].operations)
    assert story(11, 99, 13).check(append_time=True).valid, "brokers have put their own timestamps on: an old history"
    assert story(12, 11, 13).check().counts == {K.ALTERED: 2}


def test_a_record_without_a_send():
    verdict = story(11, 12, 13, 14).check()
    assert verdict.counts == {K.ALTERED: 1}
    assert verdict.anomalies[0].text == "the record at offset 3, with value 3, was never sent"


def test_record_of_a_send_that_a_cut_history_lacks():
    """A truncated history may hold a polled record without its send."""
    assert story(11, 12, 13, 14).check(ended=False, final_phase=False).counts == {}
    assert story(11, 99, 13, 14).check(ended=False, final_phase=False).counts == {K.ALTERED: 1}, (
        "this value has a recorded send"
    )
    foreign = Story().add(1, Kind.SEND, Send(P0, 0, 0, 5)).poll(2, (1, FOREIGN))
    assert foreign.check(ended=False, final_phase=False).counts == {K.ALTERED: 1}, "no send gives it out"


def test_without_digests_nothing_is_judged():
    assert story(11, 12, 13, sent=(0, 0, 0)).check().counts == {}
    assert story(11, 12, 13, sent=()).check(final_phase=False).counts == {}, "the senders are not in this history"
    half = Story().add(1, Kind.SEND, Send(P0, 0, 0, 5)).poll(2, (0, 0)).poll(2, (0, 0), final=True, rebalanced=True)
    assert half.check().counts == {}


def test_digests_of_several_partitions_stay_apart():
    reported = Story().add(1, Kind.SEND, Send(P0, 0, 0, 5)).add(1, Kind.SEND, Send(P1, 0, 0, 6))
    reported.add(2, Kind.POLL, Poll(((P1, ((0, 0),)), (P0, ((0, 0),))), ((6,), (5,))), final=True)
    assert reported.check().counts == {}
    reported.add(3, Kind.POLL, Poll(((P1, ((0, 0),)), (P0, ((0, 0),))), ((5,), (6,))))
    assert reported.check().counts == {K.ALTERED: 2}
