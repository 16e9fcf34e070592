"""Sends single Kafka requests to a node without an event loop: for readiness, status and fault timing.

Each request has its own connection; every wait has the caller's deadline. All functions return None if the node does
not answer (refused, reset, silent, an error code), because callers expect nodes that are down.
"""

from __future__ import annotations

import base64
import os
import socket
import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

from moldau.protocol.errors import KafkaError
from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.schema import Response
from moldau.runtime.sasl.core.client import ClientSession, Send, Step
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.sasl.core.scram import NONCE_BYTES, ScramClient, salted_password
from moldau.values import join_address
from moldau.version import VERSION
from moldau_jepsen.launcher.spec import HOST, Door

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.protocol.schema import Request
    from moldau.runtime.config.sasl import LoginSettings

CLIENT_ID = "moldau-launcher"
METADATA_VERSION = 9
DESCRIBE_QUORUM_VERSION = 1
LIST_OFFSETS_VERSION = 5
LATEST = -1
ANY_LEADER_EPOCH = -1
CLIENT = -1
FRAME_BYTES_MAX = 16 * 1024 * 1024
METADATA_TOPIC = "__cluster_metadata"

R = TypeVar("R", bound=Response)


def _read_exactly(peer: socket.socket, count: int, deadline: float) -> bytes:
    chunks = bytearray()
    while len(chunks) < count:
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = peer.recv(count - len(chunks))
        if not chunk:
            raise ConnectionResetError("connection closed in the middle of an answer")
        chunks += chunk
    return bytes(chunks)


def _connect(door: Door, timeout_s: float) -> socket.socket:
    """Opens a connection; the time-out applies to each step, and to each later read or write."""
    peer = socket.create_connection((door.host, door.port), timeout_s, (door.source, 0) if door.source else None)
    try:
        if door.tls is not None:
            peer = door.tls.wrap_socket(peer, server_hostname=door.host)
        if door.login is not None:
            _log_in(peer, door, door.login, time.monotonic() + timeout_s)
    except BaseException:
        peer.close()
        raise
    return peer


def _log_in(peer: socket.socket, door: Door, login: LoginSettings, deadline: float) -> None:
    """Authenticates with SCRAM.

    Raises:
        SaslAuthenticationError: the node refuses.
        OSError: the node does not answer.
    """
    session = ClientSession(login.mechanism, join_address(door.host, door.port), CLIENT_ID, (CLIENT_ID, VERSION))
    nonce = base64.b64encode(os.urandom(NONCE_BYTES)).decode().replace("=", "")
    exchange = ScramClient(login.mechanism, login.user, partial(_salted, login.mechanism, login.password), nonce)
    step: Step = session.start(exchange, 0)
    while isinstance(step, Send):
        peer.sendall(step.frame)
        step = session.receive(memoryview(_read_frame(peer, deadline)), step.correlation_id + 1)


@lru_cache(maxsize=16)
def _salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    return salted_password(mechanism, password, salt, iterations)


def _read_frame(peer: socket.socket, deadline: float) -> bytes:
    size = int.from_bytes(_read_exactly(peer, 4, deadline), "big")
    if not 4 <= size <= FRAME_BYTES_MAX:
        raise ConnectionError(f"an answer of {size} bytes")
    return _read_exactly(peer, size, deadline)


def ask(where: int | Door, request: Request, version: int, response_class: type[R], timeout_ms: float) -> R | None:
    """Sends one request to a door, or to a port of ``HOST``; returns the response, or None if none came in time."""
    deadline = time.monotonic() + timeout_ms / 1000
    door = Door(HOST, where) if isinstance(where, int) else where
    try:
        with _connect(door, timeout_ms / 1000) as peer:
            peer.sendall(encode_request(request, version, 1, CLIENT_ID))
            _, message = decode_response(response_class, version, memoryview(_read_frame(peer, deadline)))
            return message
    except (OSError, ValueError, KafkaError):
        return None


def refused_login(door: Door, timeout_ms: float) -> str:
    """Returns why the node refuses the login of ``door``; empty if it takes it, or does not answer."""
    try:
        with _connect(door, timeout_ms / 1000):
            return ""
    except SaslAuthenticationError as error:
        return str(error)
    except (OSError, ValueError, KafkaError):
        return ""


def fetch_metadata(where: int | Door, topics: Sequence[str] | None, timeout_ms: float) -> MetadataResponse | None:
    """Fetches metadata from the broker ``where``; an empty ``topics`` asks for brokers only, None for all topics."""
    names = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    return ask(where, request, METADATA_VERSION, MetadataResponse, timeout_ms)


def ask_for_ends(leader_epochs: Mapping[tuple[str, int], int]) -> ListOffsetsRequest:
    """Builds the request for the high watermarks of partitions, which their leaders answer.

    Keys are topic and partition; values are the epoch in which the broker must lead, or ``ANY_LEADER_EPOCH``.
    """
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for (topic, number), epoch in leader_epochs.items():
        wanted = ListOffsetsPartition(partition_index=number, current_leader_epoch=epoch, timestamp=LATEST)
        by_topic.setdefault(topic, []).append(wanted)
    topics = [ListOffsetsTopic(name=name, partitions=wanted) for name, wanted in by_topic.items()]
    return ListOffsetsRequest(replica_id=CLIENT, topics=topics)


def fetch_ends(
    where: int | Door, leader_epochs: Mapping[tuple[str, int], int], timeout_ms: float
) -> ListOffsetsResponse | None:
    """Fetches high watermarks from the broker ``where`` (see ``ask_for_ends``); each has its own error code."""
    return ask(where, ask_for_ends(leader_epochs), LIST_OFFSETS_VERSION, ListOffsetsResponse, timeout_ms)


def fetch_quorum(where: int | Door, timeout_ms: float) -> DescribeQuorumResponse | None:
    """Fetches the state of the metadata quorum from the node ``where``."""
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopicData(
                topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
            )
        ]
    )
    return ask(where, request, DESCRIBE_QUORUM_VERSION, DescribeQuorumResponse, timeout_ms)
