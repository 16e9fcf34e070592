"""Goal: no task and no driver of the sink waits without bound, and the error says what to do.

Method: an admin client in memory that answers as brokers do behind a transaction that does not end; virtual time.
"""

import pytest
import trio
import trio.testing

from moldau.consumer import CommittedOffset
from moldau.protocol.errors import ErrorCode, KafkaError
from pyspark_moldau.errors import SinkError
from pyspark_moldau.sink.cluster import MARKER_PARTITION, admin_of, perform_shared, read_decision
from pyspark_moldau.sink.core.decision_codec import encode_decision
from pyspark_moldau.sink.core.effects import Decision, Entry, ReadMarker
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.names import Names

NAMES = Names(app_id="q")


class Offsets:
    """Offsets of groups; those of ``unstable`` ones are held by an open transaction."""

    def __init__(self, texts, unstable=()):
        self._texts = texts
        self._unstable = unstable

    async def list_group_offsets(self, group, *, require_stable):
        await trio.lowlevel.checkpoint()
        assert trio.current_time() < 1000, "the wait has no bound"
        if require_stable and group in self._unstable:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "OffsetFetch: UNSTABLE_OFFSET_COMMIT")
        text = self._texts.get(group)
        return {} if text is None else {MARKER_PARTITION: CommittedOffset(offset=7, metadata=text)}


def options_of(**more):
    given = {"kafka.bootstrap.servers": "h:1", "deliveryGuarantee": "exactly-once"}
    return parse_sink_options(given | more, streaming=True)


def decision_texts(batch, partitions=120):
    entries = tuple(
        Entry(transactional_id=f"moldau-spark-q-task-r-{n}-0", producer_id=n, producer_epoch=0, rows=1, fingerprint=1)
        for n in range(partitions)
    )
    return encode_decision(Decision(batch=batch, run="r", entries=entries))


def run(main):
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("is_final", [False, True], ids=["task", "driver"])
@pytest.mark.parametrize("second", ["of another batch", "deleted"])
def test_parts_that_never_fit_are_an_error(is_final, second):
    old, new = decision_texts(6), decision_texts(7)
    texts = {NAMES.decision_group(0): new[0], NAMES.decision_group(1): old[1] if second != "deleted" else None}

    async def read():
        await read_decision(Offsets(texts), NAMES, is_final=is_final, limit_ms=2000)

    with pytest.raises(SinkError, match=r"together for 2 s; .* delete the consumer group moldau-spark-q-decision-0"):
        run(read)


def test_parts_that_become_visible_in_turn_are_read():
    parts = decision_texts(7)
    texts = {NAMES.decision_group(0): parts[0]}

    async def read():
        async with trio.open_nursery() as nursery:

            async def finish():
                await trio.sleep(1)
                texts.update((NAMES.decision_group(number), text) for number, text in enumerate(parts))

            nursery.start_soon(finish)
            return await read_decision(Offsets(texts), NAMES, is_final=False, limit_ms=2000)

    assert run(read).batch == 7


def test_a_marker_behind_a_hanging_transaction_is_an_error():
    name = NAMES.task("r", 0, 0)

    async def read():
        await perform_shared(Offsets({}, unstable=[name]), options_of(), NAMES, ReadMarker(name))

    with pytest.raises(SinkError, match=f"transaction of {name} does not end .*moldau txns describe {name}"):
        run(read)


@pytest.mark.parametrize(("given", "limit_ms"), [("", 60_000), ("5000", 60_000), ("300000", 300_000)])
def test_requests_have_the_time_of_the_sinks_option(given, limit_ms):
    """But not less than a change of a coordinator takes: a commit that gives up leaves a part of a batch visible."""
    options = options_of(**{"kafka.max.block.ms": given} if given else {})
    assert admin_of(options)._config.get_int("default.api.timeout.ms") == limit_ms
