"""Sends requests to one broker, and keeps its answers in a form that can be compared with another broker's."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio

from moldau.cluster import arguments
from moldau.cluster.bootstrap import secured_environment
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.schema import Request, Struct
from moldau.runtime.config import ADMIN_CONFIG
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.ports.real import real_environment

Answer = Any
"""A response, or the text of the failure of its request."""
Scenario = Callable[["AnswerSession"], Awaitable[None]]

TRANSIENT: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    )
)
"""Codes with which a request is sent again: what it asks for is not done yet, or its coordinator is still starting."""
PATIENCE_S: Final = 20.0
ANSWER_MS: Final = 10_000
IGNORED: Final = frozenset(
    (
        "acknowledge_error_message",
        "batch_index_error_message",
        "documentation",
        "error_message",
        "records",
        "throttle_time_ms",
    )
)
"""Fields that differ from run to run, and texts for people."""
OWN: Final = frozenset(("max.message.uncompressed.bytes",))
"""Settings that Kafka lacks."""
VARYING: Final = frozenset(
    (
        "broker_epoch",
        "client_host",
        "cluster_id",
        "controller_id",
        "heartbeat_interval_ms",
        "host",
        "leader",
        "leader_id",
        "log_dir",
        "member_id",
        "port",
        "producer_id",
        "session_id",
        "token_id",
        "total_bytes",
        "usable_bytes",
    )
)
"""Fields whose values a broker chooses: compared only as chosen or absent."""
_KEYS: Final = (
    *(
        "name",
        "index",
        "topic",
        "topic_name",
        "topic_id",
        "resource_type",
        "resource_name",
        "pattern_type",
        "config_name",
    ),
    *(
        "partition_index",
        "partition",
        "partition_id",
        "group_id",
        "member_id",
        "transactional_id",
        "producer_id",
        "key",
    ),
    *(
        "principal",
        "host",
        "operation",
        "permission_type",
        "broker_id",
        "user",
        "entity_type",
        "entity_name",
        "feature",
    ),
)
"""Fields by which the elements of a list are put into one order."""
_NOW_MS: Final = 1_600_000_000_000
_ABSENT: Final = "(absent)"


class Broker(NamedTuple):
    """Where a broker listens: without login for its administrator, with PLAIN for users, and where sessions end."""

    address: str
    for_users: str = ""
    where_sessions_end: str = ""
    user: str = ""
    password: str = ""


class AnswerSession:
    """A connection, and what was answered to each step of a scenario."""

    def __init__(self, connection: RpcConnection, broker: Broker, run: str, chosen: frozenset[str] = VARYING) -> None:
        """``run`` is part of all names, so that runs against one broker do not meet.

        ``chosen`` are the fields of which only counts whether a broker has chosen a value.
        """
        self.connection = connection
        self._chosen = chosen
        self.answers: dict[str, object] = {}
        self.broker = broker
        self._run = run
        self._known: dict[object, str] = {}

    async def logged_in(self, user: str, password: str) -> AnswerSession:
        """Returns a session of a user, with the names and words of this one."""
        connection = await open_connection(self.broker.for_users, user, password)
        session = AnswerSession(connection, self.broker._replace(user=user, password=password), self._run)
        session._known = self._known
        return session

    def share(self, other: AnswerSession) -> None:
        """Keeps answers and words together with those of another session of this run."""
        self.answers, self._known = other.answers, other._known

    def name(self, word: str) -> str:
        """Returns a name of this run; it appears as ``word`` in what is compared."""
        name = f"{word}-{self._run}"
        self._known[name] = word
        return name

    def known(self, value: object, word: str) -> None:
        """Shows an id that the broker has chosen as ``word``."""
        self._known[value] = word

    async def ask(
        self, step: str, request: Request, version: int | None = None, *, transient: frozenset[int] = TRANSIENT
    ) -> Answer:
        """Sends a request until its answer has no transient code, and keeps the answer as that of ``step``."""
        assert step not in self.answers, f"two steps are named {step!r}"
        chosen = self.connection.version_for(request) if version is None else version
        answer: Answer = None
        with trio.move_on_after(PATIENCE_S):
            while True:
                answer = await self._once(request, chosen)
                if not transient.intersection(codes_of(answer)):
                    break
                await trio.sleep(0.1)
        self.answers[step] = self.comparable(answer, version=chosen)
        return answer

    async def _once(self, request: Request, version: int) -> Answer:
        try:
            return await self.connection.request(request, version, ANSWER_MS)
        except trio.TooSlowError:
            failure = "no answer"
        except ConnectionError:
            failure = "the connection was closed"
        except KafkaError as error:
            return f"not sent: {error.code.name}"
        self.connection.close()
        broker = self.broker
        address = broker.for_users if broker.user else broker.address
        self.connection = await open_connection(address, broker.user, broker.password)
        return failure

    async def ask_all(
        self,
        prefix: str,
        requests: Mapping[str, Request],
        version: int | None = None,
        *,
        transient: frozenset[int] = TRANSIENT,
    ) -> None:
        """Sends independent requests, each a step of its own."""
        for step, request in requests.items():
            await self.ask(f"{prefix}: {step}", request, version, transient=transient)

    def comparable(self, value: object, name: str = "", version: int = 0) -> object:
        """Returns what of a value can be compared: with the words of this run, and lists in one order.

        Of a part that was refused only its name and the code count: what else it says has no reader.
        """
        if isinstance(value, Struct):
            fields = {
                key: getattr(value, key)
                for key, spec in type(value).__fields__.items()
                if key not in IGNORED and version in spec.versions
            }
            if any(key.endswith("error_code") and code for key, code in fields.items()):
                fields = {key: field for key, field in fields.items() if key in _KEYS or key.endswith("error_code")}
            return {key: self.comparable(field, key, version) for key, field in fields.items()}
        if value in (None, "") or (isinstance(value, Sequence | memoryview) and not len(value)):
            return None  # Kafka leaves out what is empty in some answers, and gives it in others
        if isinstance(value, Mapping):
            return {key: self.comparable(entry, str(key), version) for key, entry in value.items()}
        if name in self._chosen and not (isinstance(value, int) and value < 0):
            return self._known.get(value, f"({name})") if isinstance(value, str) else f"({name})"
        if isinstance(value, uuid.UUID):
            return self._known.get(value, "(id)") if value.int else None
        if isinstance(value, str):
            return self._known.get(value, value.replace(f"-{self._run}", ""))
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            if name.endswith("error_code"):
                return ErrorCode(value).name
            return "(now)" if value > _NOW_MS and value < 2 * _NOW_MS else value
        if isinstance(value, Sequence):
            theirs = (each for each in value if getattr(each, "name", None) not in OWN)
            return sorted((self.comparable(each, name, version) for each in theirs), key=_order)
        return value


def codes_of(answer: object) -> set[int]:
    """Returns all error codes of an answer."""
    if isinstance(answer, Struct):
        found = {answer_code for key in type(answer).__fields__ for answer_code in codes_of_field(answer, key)}
        return found
    if isinstance(answer, list | tuple):
        return {code for each in answer for code in codes_of(each)}
    return set()


def codes_of_field(answer: Struct, key: str) -> set[int]:
    """Returns the error codes of one field."""
    value = getattr(answer, key)
    return {value} if key.endswith("error_code") else codes_of(value)


def _order(value: object) -> str:
    if isinstance(value, dict):
        return repr([(key, value[key]) for key in _KEYS if key in value]) + repr(value)
    return f"{value:20}" if isinstance(value, int) else repr(value)


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Returns all values of a comparable answer with their paths."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}")
    elif isinstance(value, list):
        yield f"{path}#", len(value)
        for number, each in enumerate(value):
            yield from leaves(each, f"{path}[{number}]")
    else:
        yield path, value


def differing(kafka: object, moldau: object) -> list[tuple[str, object, object]]:
    """Returns the paths whose values in two comparable answers differ, with both values."""
    ours, theirs = dict(leaves(moldau)), dict(leaves(kafka))
    pairs = ((path, theirs.get(path, _ABSENT), ours.get(path, _ABSENT)) for path in dict.fromkeys([*theirs, *ours]))
    return [each for each in pairs if each[1] != each[2]]


def differences(kafka: Mapping[str, object], moldau: Mapping[str, object]) -> dict[str, str]:
    """Returns the steps with different answers, and what differs, one line each."""
    found: dict[str, str] = {}
    for step in dict.fromkeys([*kafka, *moldau]):
        lines = [
            f"{path or 'answer'}: Kafka {theirs!r}, Moldau {ours!r}"
            for path, theirs, ours in differing(kafka.get(step, "(no step)"), moldau.get(step, "(no step)"))
        ]
        if lines:
            found[step] = "; ".join(lines)
    return found


async def open_connection(
    address: str, user: str = "", password: str = "", client_id: str = "same-answers"
) -> RpcConnection:
    """Connects to ``host:port``, as a user if one is named."""
    host, port = address.rsplit(":", 1)
    environment = real_environment()
    if user:
        login = {
            "bootstrap.servers": address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }
        environment = secured_environment(environment, arguments.configuration("same answers", login, ADMIN_CONFIG))
    return await RpcConnection.open(environment, host, int(port), client_id)


def answers_of(broker: Broker, scenario: Scenario, run: str) -> dict[str, object]:
    """Runs a scenario against one broker, and returns its answers by step."""

    async def main() -> dict[str, object]:
        session = AnswerSession(await open_connection(broker.address), broker, run)
        try:
            await scenario(session)
        finally:
            session.connection.close()
        return session.answers

    return trio.run(main)
