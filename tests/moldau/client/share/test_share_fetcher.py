"""Goal: a share consumer pauses after failures in a row, and only where an answer brought nothing but errors.

Method: the fetcher alone, with a session whose answers are those of the test.
"""

from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.share_fetch import AcquiredRecords, PartitionData
from moldau.records import encode_batch
from moldau.runtime.telemetry.log import EventLogger
from moldau.share.core.deliveries import Deliveries
from moldau.share.fetcher import ShareFetcher
from moldau.share.node import Arrival, ShareLimits

LIMITS = ShareLimits(max_wait_ms=0, min_bytes=1, max_bytes=1, max_records=9, acquire_mode=0, request_timeout_ms=1_000)
TOPIC = UUID(int=7)
KEYS = [(TOPIC, TopicPartition("t", number)) for number in (0, 1)]


def pauses_of(*answers):
    """Returns the pauses, each as the number of failures in a row, while a broker gives the answers."""
    pauses, left = [], list(answers)

    async def backoff(failures):
        await trio.lowlevel.checkpoint()
        pauses.append(failures)

    async def fetch(wanted, limits):
        await trio.lowlevel.checkpoint()
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Arrival(1, 0, 0.0, 1_000.0, 1_000, list(zip(KEYS, answer, strict=True)))

    async def main():
        client = SimpleNamespace(now_ms=0.0, backoff=backoff, request_update=lambda: None, logger=EventLogger("test"))
        fetcher = ShareFetcher(
            client,
            group_id="g",
            member_id="m",
            limits=LIMITS,
            deliveries=Deliveries(),
            check_crcs=True,
            start_soon=lambda *_: None,
        )
        node = SimpleNamespace(node_id=1, is_fetching=True, fetch=fetch)
        while left:
            await fetcher._fetch(node, KEYS, LIMITS)

    trio.run(main)
    return pauses


def answer(*, failed, records):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if failed else ErrorCode.NONE
    batch = encode_batch([(1, None, b"0", ())])
    acquired = [AcquiredRecords(first_offset=0, last_offset=0, delivery_count=1)]
    return [
        PartitionData(partition_index=0, error_code=code),
        PartitionData(partition_index=1, records=batch, acquired_records=acquired)
        if records
        else PartitionData(partition_index=1),
    ]


@pytest.mark.parametrize(
    ("failed", "records", "pauses"), [(True, True, []), (True, False, [1]), (False, True, []), (False, False, [])]
)
def test_records_beside_a_failed_partition_come_without_a_pause(failed, records, pauses):
    """The broker has waited for records itself, unless it had an error to report at once."""
    assert pauses_of(answer(failed=failed, records=records)) == pauses


def test_an_answer_ends_the_failures_in_a_row():
    """A consumer that runs for months must not pause longer with each failure."""
    down, works = KafkaError(ErrorCode.NETWORK_EXCEPTION), answer(failed=False, records=True)
    assert pauses_of(down, down, works, down, works, down) == [1, 2, 1, 1]
