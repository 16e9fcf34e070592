"""The ``kafka.*`` options: what connections to the brokers need, taken from the keys of Kafka's consumer.

A key that Moldau's own consumer declares is checked by its schema, so that TLS and authentication keys mean here what
they mean there. Kafka's other consumer keys are accepted with a warning, because a query that runs with Spark's Kafka
source must run here; a key that looks like a misspelt one is an error.
"""

from __future__ import annotations

import difflib
import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import CONSUMER_CONFIG, ConfigError
from moldau.runtime.config.declaration import LONG_MAX
from moldau.values import join_address, list_elements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.config import Config

logger = logging.getLogger(__name__)

PREFIX: Final = "kafka."
DEFAULT_API_TIMEOUT_MS: Final = 60_000
REQUEST_TIMEOUT_MS: Final = 30_000
PARTITION_FETCH_BYTES: Final = 4 * 1024 * 1024
PARTITION_FETCH_BYTES_MAX: Final = 256 * 1024 * 1024
SOCKET_BUFFER_BYTES_MAX: Final = 256 * 1024 * 1024
SOCKET_TIMEOUT_MS_MAX: Final = 2**31 - 1
"""A socket refuses a time-out of more than 292 years. Kafka allows a long for that of a connection."""

API_TIMEOUT: Final = "default.api.timeout.ms"

OBEYED: Final = (
    "bootstrap.servers",
    "check.crcs",
    "client.id",
    "client.rack",
    API_TIMEOUT,
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "isolation.level",
    "max.partition.fetch.bytes",
    "receive.buffer.bytes",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.ms",
)
"""Keys that change what the source does; those that begin with ``SECURITY_PREFIXES`` do too."""

PROTOCOL: Final = "security.protocol"
JAAS: Final = "sasl.jaas.config"
SECURITY_PREFIXES: Final = (PROTOCOL, "ssl.", "sasl.")

JAVA_SECURITY: Final = (
    "sasl.client.callback.handler.class",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.oauthbearer.assertion.algorithm",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include",
    "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.template.file",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.jwt.validator.class",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "security.providers",
    "ssl.engine.factory.class",
    "ssl.keymanager.algorithm",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
)
"""Keys of logins and TLS that Kafka's Java clients alone can obey: their classes, Kerberos, how they renew tokens."""

WITHOUT_EFFECT: Final = (
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "auto.include.jmx.reporter",
    "client.dns.lookup",
    "config.providers",
    "connections.max.idle.ms",
    "enable.metrics.push",
    "exclude.internal.topics",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "metadata.max.age.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "partition.assignment.strategy",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "session.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    *JAVA_SECURITY,
)
"""Keys of Kafka's consumer that are accepted and change nothing here."""

REFUSED: Final = {
    "auto.offset.reset": "use the option startingOffsets: the position is the checkpoint's, not the group's",
    "key.deserializer": "keys are binary; use Spark functions to decode them",
    "value.deserializer": "values are binary; use Spark functions to decode them",
    "enable.auto.commit": "offsets are in the checkpoint; publishOffsetsToGroup shows them to lag tools",
    "interceptor.classes": "interceptors may change records behind Spark's back",
}

_SILENT: Final = ("group.id",)  # Spark's own documentation recommends it in places, and no user is misled


class OptionError(ValueError):
    """An option is missing, misspelt, refused, or has a bad value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of connections to brokers. Instances are picklable, because Spark sends them to the tasks.

    ``security`` holds the ``security.protocol``, ``ssl.*`` and ``sasl.*`` keys as given; it is not part of ``repr``.
    """

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str = "pyspark-moldau"
    rack: str = ""
    read_committed: bool = False
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    connect_timeout_ms: int = 10_000
    api_timeout_ms: int = DEFAULT_API_TIMEOUT_MS
    reach_timeout_ms: int | None = None  # how long a query waits for its first answer; None leaves it to the caller
    partition_fetch_bytes: int = PARTITION_FETCH_BYTES
    fetch_bytes: int = PARTITION_FETCH_BYTES_MAX
    fetch_bytes_min: int = 1
    fetch_wait_ms: int = 500
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    receive_buffer_bytes: int = -1
    send_buffer_bytes: int = -1
    check_crcs: bool = True
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def parse_client(given: Mapping[str, str]) -> ClientOptions:
    """Reads the ``kafka.*`` options from lower-case ``given``.

    Raises:
        OptionError: with the option, its value and what is right.
    """
    keys = {name.removeprefix(PREFIX): value for name, value in given.items() if name.startswith(PREFIX)}
    check_names(keys)
    bootstrap = _bootstrap(keys.get("bootstrap.servers", ""))
    config = _config(keys)
    fetch_bytes = _limited(config, "max.partition.fetch.bytes", PARTITION_FETCH_BYTES)
    poll_ms = given.get("kafkaconsumer.polltimeoutms")
    api_timeout_ms = positive(poll_ms, "kafkaConsumer.pollTimeoutMs") if poll_ms else config.get_int(API_TIMEOUT)
    return ClientOptions(
        bootstrap=bootstrap,
        client_id=keys.get("client.id") or "pyspark-moldau",
        rack=keys.get("client.rack", ""),
        read_committed=config.get_str("isolation.level") == "read_committed",
        request_timeout_ms=config.get_int("request.timeout.ms"),
        connect_timeout_ms=min(config.get_int("socket.connection.setup.timeout.ms"), SOCKET_TIMEOUT_MS_MAX),
        api_timeout_ms=api_timeout_ms,
        reach_timeout_ms=api_timeout_ms if poll_ms or config.is_set(API_TIMEOUT) else None,
        partition_fetch_bytes=fetch_bytes,
        fetch_bytes=_limited(config, "fetch.max.bytes", PARTITION_FETCH_BYTES_MAX),
        fetch_bytes_min=config.get_int("fetch.min.bytes"),
        fetch_wait_ms=config.get_int("fetch.max.wait.ms"),
        retry_backoff_ms=config.get_int("retry.backoff.ms"),
        retry_backoff_max_ms=config.get_int("retry.backoff.max.ms"),
        receive_buffer_bytes=_buffer(keys, "receive.buffer.bytes"),
        send_buffer_bytes=_buffer(keys, "send.buffer.bytes"),
        check_crcs=config.get_bool("check.crcs"),
        security=tuple(
            sorted(
                (name, keys[name].upper() if name == PROTOCOL else keys[name]) for name in keys if _is_security(name)
            )
        ),
    )


def check_names(keys: Mapping[str, str]) -> None:
    """Refuses keys that cannot work or look misspelt, and warns of those without effect.

    Raises:
        OptionError: a key is refused.
    """
    known = sorted(known_names())
    for name in sorted(keys):
        if name in REFUSED:
            raise OptionError(f"{PREFIX}{name} is not supported: {REFUSED[name]}")
        if name in _SILENT or (name not in WITHOUT_EFFECT and name in known):
            continue
        # Later versions of Kafka have more keys of logins, whose names are like those that are known.
        likeness = 0.9 if name.startswith(SECURITY_PREFIXES) else 0.6
        near = [] if name in known else difflib.get_close_matches(name, known, 1, likeness)
        if near:
            raise OptionError(f"unknown option {PREFIX}{name}; did you mean {PREFIX}{near[0]}?")
        logger.warning("option-without-effect name=%s: Spark's Kafka source takes it; it changes nothing here", name)


def known_names() -> set[str]:
    """Returns the names of the keys of Kafka's consumer, without the prefix that makes options of them."""
    return {*OBEYED, *WITHOUT_EFFECT, *REFUSED, *CONSUMER_CONFIG.keys}


def security_config(client: ClientOptions) -> Config:
    """Returns the configuration of Moldau's own clients with the security keys of ``client``.

    Raises:
        OptionError: a key or a value is wrong.
    """
    host, port = client.bootstrap[0]
    return _parse({"bootstrap.servers": join_address(host, port)} | dict(client.security))


def positive(text: str, name: str) -> int:
    """Returns the value of option ``name``, a positive number; the largest long of Java often means no limit.

    Raises:
        OptionError: it is something else.
    """
    if not re.fullmatch(r"\d{1,19}", text) or not 0 < int(text) <= LONG_MAX:
        raise OptionError(f"{name}: expected a positive number of at most {LONG_MAX}, got {text!r}")
    return int(text)


def _config(keys: Mapping[str, str]) -> Config:
    checked = {name: value for name, value in keys.items() if name in CONSUMER_CONFIG.keys and name != "client.id"}
    # Kafka writes these in any case; the schema of Moldau's clients has one way each.
    for name, change in (("isolation.level", str.lower), (PROTOCOL, str.upper)):
        if name in checked:
            checked[name] = change(checked[name])
    return _parse(checked)


def _parse(keys: Mapping[str, str]) -> Config:
    taken = {name: value for name, value in keys.items() if name in CONSUMER_CONFIG.keys}
    try:
        return CONSUMER_CONFIG.parse(taken)
    except ConfigError as error:
        raise OptionError(f"{PREFIX}{error.problems[0]}") from error


def _is_security(name: str) -> bool:
    return name.startswith(SECURITY_PREFIXES) and name in CONSUMER_CONFIG.keys


def _bootstrap(servers: str) -> tuple[tuple[str, int], ...]:
    addresses = []
    for address in list_elements(servers):
        host, colon, port = address.rpartition(":")
        if not colon or not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 65536:
            raise OptionError(f"kafka.bootstrap.servers: expected host:port, got {address!r}")
        try:
            host.encode("idna")
        except UnicodeError as error:
            raise OptionError(f"kafka.bootstrap.servers: {host!r} in {address!r} is no name of a host") from error
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise OptionError("kafka.bootstrap.servers must be given, as host:port,...")
    return tuple(addresses)


def _limited(config: Config, name: str, default: int) -> int:
    if not config.is_set(name):
        return default
    value = config.get_int(name)
    if not 0 < value <= PARTITION_FETCH_BYTES_MAX:
        raise OptionError(f"{PREFIX}{name}: expected 1 to {PARTITION_FETCH_BYTES_MAX}, got {value}")
    return value


def _buffer(keys: Mapping[str, str], name: str) -> int:
    text = keys.get(name, "-1")
    if not re.fullmatch(r"-1|\d{1,9}", text) or int(text) > SOCKET_BUFFER_BYTES_MAX:
        raise OptionError(f"{PREFIX}{name}: expected -1 or at most {SOCKET_BUFFER_BYTES_MAX} bytes, got {text!r}")
    return int(text)
