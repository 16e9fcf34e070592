"""Goal: each small rule on which all clients depend holds in every case.

Method: the functions alone, in all combinations of what they look at.
"""

from __future__ import annotations

import copy
import pickle
from itertools import product

import pytest
import trio

from moldau.admin import AdminError
from moldau.cluster.arguments import committed_offsets
from moldau.cluster.background import Background
from moldau.cluster.connections.endpoints import CONTROLLERS, metadata_of
from moldau.cluster.connections.links import Link, _is_decided
from moldau.cluster.metadata import ClusterMetadata, TopicInfo, TopicPartition
from moldau.consumer import CommittedOffset, OffsetsUnknownError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_cluster import DescribeClusterResponse
from moldau.runtime.config import ConfigError
from moldau.runtime.net.served_versions import UnsupportedApiError
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.serialization import RecordDeserializationError
from moldau.values import ZERO_UUID


def topic(error: ErrorCode) -> TopicInfo:
    return TopicInfo(name="t", topic_id=ZERO_UUID, is_internal=False, partitions=(), error=error)


def test_news_of_a_refusal_that_stays_ends_a_call() -> None:
    """A refusal from before the call may be out of date, and one that passes is waited for."""
    refused = {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION}
    codes = [*refused, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE]
    for code, is_news in product(codes, (False, True)):
        metadata = ClusterMetadata()
        info = topic(code)
        metadata.topics = {"t": info}
        before = topic(code) if is_news else info
        if is_news and code in refused:
            with pytest.raises(KafkaError) as raised:
                metadata.check_topic("t", before)
            assert raised.value.code is code
        else:
            metadata.check_topic("t", before)
    ClusterMetadata().check_topic("t", topic(ErrorCode.TOPIC_AUTHORIZATION_FAILED))


@pytest.mark.parametrize("is_controller", [False, True])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NONE,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.MISMATCHED_ENDPOINT_TYPE,
        ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_refusal_of_a_controller_is_named_as_such(code: ErrorCode, is_controller: bool) -> None:
    """An answer with an error leaves the kind of the endpoints at its default, which is that of brokers."""
    answer = DescribeClusterResponse(error_code=code, endpoint_type=CONTROLLERS if is_controller else 1)
    is_none = code in (ErrorCode.MISMATCHED_ENDPOINT_TYPE, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)
    if is_none or (code is ErrorCode.NONE and not is_controller):
        with pytest.raises(UnsupportedApiError, match="peer:1 is no controller"):
            metadata_of(answer, "peer:1")
    elif code is not ErrorCode.NONE:
        with pytest.raises(KafkaError) as raised:
            metadata_of(answer, "peer:1")
        assert raised.value.code is code
    else:
        metadata_of(answer, "peer:1")


def test_an_offset_alone_is_committed_without_an_epoch() -> None:
    """With an epoch that it does not have, consumers would look for a truncation that never was (KIP-320)."""
    given = {("t", 0): 7, ("t", 1): CommittedOffset(8, leader_epoch=3, metadata="m")}
    assert committed_offsets("commit", given) == [
        (TopicPartition("t", 0), 7, -1, ""),
        (TopicPartition("t", 1), 8, 3, "m"),
    ]


@pytest.mark.parametrize("closing_fails", [False, True])
@pytest.mark.parametrize("block_fails", [False, True])
def test_a_client_departs_only_after_an_exception(block_fails: bool, closing_fails: bool) -> None:
    """Departing gives up what closing would finish: records are dropped, and a transaction is aborted."""
    did: list[str] = []

    async def main() -> None:
        background = Background()
        await background.open()

        async def closing() -> None:
            did.append("closing")
            if closing_fails:
                raise ValueError

        async def departing() -> None:
            did.append("departing")

        error = KeyError("block") if block_fails else None
        kind = None if error is None else type(error)
        fails = closing_fails and not block_fails
        try:
            await background.close(kind, error, None, closing=closing, departing=departing)
        except ValueError:
            assert fails
        else:
            assert not fails

    trio.run(main)
    assert did == ["closing"] * (not block_fails) + ["departing"] * (block_fails or closing_fails)


def test_an_open_connection_or_the_last_one_decides() -> None:
    class Known(Link):
        is_open = False

    for opening, *opened in product((False, True), repeat=3):
        links = []
        for number, is_open in enumerate(opened):
            link = Known("")
            link.is_open = is_open  # type: ignore[misc]
            link.opening = opening and number == 1
            links.append((number, link))
        assert _is_decided(links[-1][1], links) is (not opening or any(opened))


REFUSED = KafkaError(ErrorCode.NOT_COORDINATOR, "why")
PAIR = TopicPartition("t", 0)
AT = {"topic_partition": PAIR, "offset": 5, "timestamp": 7, "key": None, "value": b"v", "headers": ()}


@pytest.mark.parametrize("rebuilt", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize(
    "error",
    [
        REFUSED,
        AdminError({"t": REFUSED}, ["done"]),
        OffsetsUnknownError("g", {PAIR: REFUSED}, {}),
        SaslAuthenticationError(ErrorCode.SASL_AUTHENTICATION_FAILED, "why"),
        ConfigError(["one", "two"]),
        RecordDeserializationError("why", field="value", **AT),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_pass_between_processes_as_they_are(error: Exception, rebuilt) -> None:
    found = rebuilt(error)
    assert (type(found), str(found), found.args) == (type(error), str(error), error.args)
    assert repr(vars(found)) == repr(vars(error))
