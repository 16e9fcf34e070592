"""A decision survives its encoding in parts that fit the metadata of an offset."""

import pytest

from pyspark_moldau.sink.core.decision_codec import PART_BYTES_MAX, decode_decision, encode_decision, parts_of
from pyspark_moldau.sink.core.effects import Decision, Entry
from pyspark_moldau.sink.core.refusals import ProtocolRefusedError


def decision(count, batch=7, amendments=0, topic=None, plan=""):
    entries = [
        None
        if number % 5 == 4
        else Entry(
            transactional_id=f"moldau-spark-{'q' * 36}-task-{'r' * 36}-{number}-0",
            producer_id=10**12 + number,
            producer_epoch=number % 9,
            rows=number,
            fingerprint=2**64 - 1 - number,
        )
        for number in range(count)
    ]
    return Decision(batch=batch, run="run", entries=tuple(entries), amendments=amendments, topic=topic, plan=plan)


@pytest.mark.parametrize("topic", [None, "", "t" * 249])
@pytest.mark.parametrize("count", [1, 3, 40, 400, 3000])
def test_a_decision_survives_its_encoding(count, topic):
    for plan in ("", "0123456789abcdef"):
        parts = encode_decision(decision(count, topic=topic, plan=plan))
        assert all(len(part.encode()) <= PART_BYTES_MAX for part in parts)
        assert parts_of(parts[0]) == len(parts)
        assert decode_decision(parts) == decision(count, topic=topic, plan=plan)


def test_parts_of_two_decisions_are_no_decision():
    one, other = encode_decision(decision(100)), encode_decision(decision(100, amendments=1))
    assert decode_decision([one[0], *other[1:]]) is None
    assert decode_decision(one[:-1]) is None


def test_too_many_partitions_and_other_versions_are_refused():
    with pytest.raises(ProtocolRefusedError, match="coalesce the rows into fewer partitions"):
        encode_decision(decision(20_000))
    with pytest.raises(ProtocolRefusedError, match="version 2 of the sink's protocol"):
        parts_of('{"v":2,"n":1}')
