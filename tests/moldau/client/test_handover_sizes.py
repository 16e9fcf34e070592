"""Goal: the bytes that wait for the thread of a producer are bounded, in whatever part of a record they are.

Method: a hand-over whose thread takes nothing; a producer of threads whose records of one byte are small.
"""

from types import SimpleNamespace

import pytest

from moldau.blocking import Producer
from moldau.blocking.handover import HANDOVER_BYTES_MAX, LARGE_BYTES, Handover, PendingDelivery

LARGE = bytes(HANDOVER_BYTES_MAX // 32)
PARTS = {"value": (LARGE, None, ()), "key": (None, LARGE, ()), "header": (None, None, (("a", LARGE),))}


@pytest.mark.parametrize("part", PARTS)
def test_large_parts_of_records_are_bounded(part):
    """Only values counted: ten thousand records with keys or headers of a megabyte would have waited."""
    handover = Handover(SimpleNamespace())
    token = SimpleNamespace(run_sync_soon=lambda _: None)
    value, key, headers = PARTS[part]

    def put():
        record = ("t", value, key, headers, None, None, PendingDelivery(None))
        return handover.put_nowait(record, token, lambda: None)

    assert [put() for _ in range(33)] == [True] * 32 + [False]


@pytest.mark.parametrize("part", ["value", "key"])
def test_a_send_of_a_large_record_looks_for_room(part):
    """The way of small records does not count them."""
    with Producer({"bootstrap.servers": "127.0.0.1:1"}) as producer:
        sizes = []
        original = producer._handover.put
        producer._handover.put = lambda record, token: (sizes.append(record), original(record, token))
        for size in (1, LARGE_BYTES):
            producer.send("t", **{"value": None, part: bytes(size)})
        assert len(sizes) == 1
        producer.close(0)
