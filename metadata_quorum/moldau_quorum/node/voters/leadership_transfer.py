"""The private API that hands the leadership of the metadata quorum to another voter (Kafka has none).

    request  = msgpack [1, target_id]          -1: the voter that is furthest
    response = msgpack [1, error_code, message, leader_id]

It is served by controller listeners. ``transfer_leadership`` asks the leader, wherever it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgpack
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.net.rpc import RpcConnection
from moldau.values import join_address
from moldau_quorum.metadata.records import MetadataCorruptError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.ports.environment import Environment

LEADERSHIP_TRANSFER_KEY: Final = 20_101
LEADERSHIP_TRANSFER_VERSION: Final = 1
ANY_VOTER: Final = -1
UNREACHABLE_S: Final = 5.0
"""How long all controllers may fail to answer."""


class ControllersUnreachableError(ConnectionError):
    """No controller answers: the network is cut, or they refuse these connections, by TLS or by login."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResponse:
    """Outcome, and the leader as the answering node knows it (-1 unknown)."""

    error_code: int
    message: str
    leader_id: int


def encode_transfer_request(target_id: int) -> bytes:
    """Returns the body of a request."""
    return bytes(msgpack.packb((LEADERSHIP_TRANSFER_VERSION, target_id)))


def decode_transfer_request(body: bytes | memoryview) -> int:
    """Returns the target of a request.

    Raises:
        MetadataCorruptError: the request is damaged.
    """
    fields = _unpack(body)
    if [type(field) for field in fields] != [int, int]:
        raise MetadataCorruptError("a transfer request is ill-typed")
    target_id = fields[1]
    assert isinstance(target_id, int)
    return target_id


def encode_transfer_response(response: TransferResponse) -> bytes:
    """Returns the body of a response."""
    fields = (LEADERSHIP_TRANSFER_VERSION, int(response.error_code), response.message, response.leader_id)
    return bytes(msgpack.packb(fields))


def decode_transfer_response(body: bytes | memoryview) -> TransferResponse:
    """Parses a response.

    Raises:
        MetadataCorruptError: it is damaged.
    """
    fields = _unpack(body)
    match fields:
        case (_, int(code), str(message), int(leader_id)):
            return TransferResponse(error_code=code, message=message, leader_id=leader_id)
    raise MetadataCorruptError("a transfer response is ill-typed")


def _unpack(body: bytes | memoryview) -> tuple[object, ...]:
    try:
        fields = msgpack.unpackb(body, use_list=False)
    except (ValueError, RecursionError) as error:
        raise MetadataCorruptError("a transfer message is not valid msgpack") from error
    if type(fields) is not tuple or not fields or fields[0] != LEADERSHIP_TRANSFER_VERSION:
        raise MetadataCorruptError("a transfer message has an unknown version")
    return fields


async def transfer_leadership(
    environment: Environment,
    voters: Mapping[int, tuple[str, int]],
    *,
    target_id: int = ANY_VOTER,
    timeout_ms: float = 15_000,
) -> int:
    """Finds the leader among ``voters`` and has it hand over; returns the new leader's id as the old one knows it.

    Raises:
        KafkaError: the leader refused; VOTER_NOT_FOUND, INVALID_REQUEST, REQUEST_TIMED_OUT.
        ControllersUnreachableError: no controller answered at all for some seconds.
        trio.TooSlowError: no leader was found in time.
    """
    begun = trio.current_time()
    answered = False
    with trio.fail_after(timeout_ms / 1000):
        while True:
            failures: list[str] = []
            for node_id, (host, port) in sorted(voters.items()):
                try:
                    response = await _ask(environment, host, port, target_id, timeout_ms)
                except (OSError, trio.TooSlowError) as error:
                    failures.append(f"controller {node_id} at {join_address(host, port)}: {str(error) or 'no answer'}")
                    continue
                answered = True
                if response.error_code == ErrorCode.NOT_CONTROLLER:
                    continue
                if response.error_code != ErrorCode.NONE:
                    raise KafkaError(ErrorCode.of(response.error_code), response.message)
                return response.leader_id
            if not answered and trio.current_time() - begun > UNREACHABLE_S:
                raise ControllersUnreachableError("; ".join(failures))
            await trio.sleep(0.1)


async def _ask(environment: Environment, host: str, port: int, target_id: int, timeout_ms: float) -> TransferResponse:
    connection = await RpcConnection.open(environment, host, port, "leadership-transfer", timeout_ms=1_000)
    try:
        body = await connection.request_raw(
            LEADERSHIP_TRANSFER_KEY,
            LEADERSHIP_TRANSFER_VERSION,
            encode_transfer_request(target_id),
            timeout_ms=timeout_ms,
        )
        return decode_transfer_response(body)
    finally:
        connection.close()
