"""The schemas of clients, of serializers and of their schema registry; a client loads no others."""

from __future__ import annotations

from dataclasses import replace

from moldau.runtime.config.declaration import NOT_UTF_8, Config, ConfigError, ConfigSchema
from moldau.runtime.config.keys.client import ADMIN_KEYS, CLIENT_KEYS, CONSUMER_KEYS, PRODUCER_KEYS
from moldau.runtime.config.keys.registry import REGISTRY_KEYS, SERIALIZER_KEYS
from moldau.runtime.config.keys.sasl import CLIENT_SASL_KEYS
from moldau.runtime.config.listeners import SecurityProtocol, addresses
from moldau.values import is_reset, is_text

IDEMPOTENT_IN_FLIGHT_MAX = 5
"""A broker remembers the last five batches of a producer; with more in flight it could not recognise duplicates."""


NAMES = ("client.id", "client.rack", "group.id", "group.instance.id", "transactional.id")
NAME_BYTES_MAX = 2**15 - 1
"""Bytes of a name that each version of a request can hold."""


def check_client(config: Config) -> list[str]:
    """Returns what is wrong with the keys that all clients have."""
    problems = _name_problems(config)
    if not config.get_list("bootstrap.servers"):
        problems.append("bootstrap.servers: must name at least one host:port")
    return problems + _address_problems(config, "bootstrap.servers")


def _name_problems(config: Config) -> list[str]:
    """Refuses names that no request can hold; the client would fail at its first one, and name no key."""
    problems: list[str] = []
    for key in NAMES:
        name = config.get_str_or_none(key) if key in config else None
        if name is not None and not is_text(name):
            problems.append(f"{key} = {name!r}: {NOT_UTF_8}")
        elif name is not None and len(name.encode()) > NAME_BYTES_MAX:
            problems.append(f"{key} = {name[:20]!r}...: must have at most {NAME_BYTES_MAX} bytes")
    return problems


def _address_problems(config: Config, key: str) -> list[str]:
    try:
        addresses(config, key)
    except ConfigError as error:
        return list(error.problems)
    return []


def _check_admin(config: Config) -> list[str]:
    if not config.get_list("bootstrap.controllers"):
        return check_client(config)
    if config.get_list("bootstrap.servers"):
        return ["bootstrap.controllers: cannot be combined with bootstrap.servers; give one of them"]
    return _name_problems(config) + _address_problems(config, "bootstrap.controllers")


def _empty_problem(config: Config, key: str) -> list[str]:
    """Refuses an empty name, as Kafka's clients do: members of a group that share it would fence each other."""
    return [f"{key}: must not be empty; leave the key out"] if config.get_str_or_none(key) == "" else []


def _check_producer(config: Config) -> list[str]:
    problems = _empty_problem(config, "transactional.id")
    acks_all = config.get_str("acks") in ("all", "-1")
    wants_idempotence = config.is_set("enable.idempotence") and config.get_bool("enable.idempotence")
    is_transactional = config.get_str_or_none("transactional.id") is not None
    in_flight = config.get_int("max.in.flight.requests.per.connection")
    if wants_idempotence or is_transactional:
        reason = "transactional.id" if is_transactional else "enable.idempotence"
        if not acks_all:
            problems.append(f"acks = {config.get_str('acks')!r}: must be all with {reason}")
        if in_flight > IDEMPOTENT_IN_FLIGHT_MAX:
            problems.append(
                f"max.in.flight.requests.per.connection = {in_flight}: "
                f"must be at most {IDEMPOTENT_IN_FLIGHT_MAX} with {reason}"
            )
        if config.get_int("retries") == 0:
            problems.append(f"retries = 0: must be at least 1 with {reason}")
    if is_transactional and config.is_set("enable.idempotence") and not config.get_bool("enable.idempotence"):
        problems.append("enable.idempotence = false: must be true with transactional.id")
    least = config.get_int("linger.ms") + config.get_int("request.timeout.ms")
    if config.get_int("delivery.timeout.ms") < least and config.is_set("delivery.timeout.ms"):
        problems.append(
            f"delivery.timeout.ms = {config.get_int('delivery.timeout.ms')}: must be at least "
            f"linger.ms + request.timeout.ms = {least}"
        )
    return problems


def idempotence_enabled(config: Config) -> bool:
    """Returns whether a producer with this configuration is idempotent.

    The default is yes, unless other keys make it impossible.
    """
    if config.is_set("enable.idempotence"):
        return config.get_bool("enable.idempotence")
    return (
        config.get_str("acks") in ("all", "-1")
        and config.get_int("max.in.flight.requests.per.connection") <= IDEMPOTENT_IN_FLIGHT_MAX
        and config.get_int("retries") > 0
    )


def _check_consumer(config: Config) -> list[str]:
    problems = _empty_problem(config, "group.instance.id")
    reset = config.get_str("auto.offset.reset")
    if not is_reset(reset, "earliest", "latest", "none"):
        problems.append(
            f"auto.offset.reset = {reset!r}: must be earliest, latest, none or "
            "by_duration:<ISO 8601 duration such as PT1H>"
        )
    heartbeat_ms, session_ms = config.get_int("heartbeat.interval.ms"), config.get_int("session.timeout.ms")
    if heartbeat_ms >= session_ms:
        problems.append(f"heartbeat.interval.ms = {heartbeat_ms}: must be below session.timeout.ms = {session_ms}")
    if not config.get_list("partition.assignment.strategy"):
        problems.append("partition.assignment.strategy: must name at least one assignor")
    if config.get_str_or_none("group.instance.id") is not None and config.get_str_or_none("group.id") is None:
        problems.append("group.instance.id: needs group.id")
    return problems


def check_client_security(config: Config) -> list[str]:
    """Returns what is wrong with the keys of TLS and SASL."""
    protocol = SecurityProtocol[config.get_str("security.protocol")]
    problems = _tls_problems(config) if protocol.uses_tls else []
    if protocol.uses_sasl:
        from moldau.runtime.config.sasl import client_login, problems_of  # not loaded by clients without SASL

        problems += problems_of(client_login, config)
    elif config.get_str("sasl.mechanism"):
        problems.append(
            f"sasl.mechanism: has no effect with security.protocol = {protocol.name}; set SASL_{_below(protocol)}"
        )
    return problems


def _tls_problems(config: Config) -> list[str]:
    from moldau.runtime.config.tls import tls_problems, tls_settings  # not loaded by clients without TLS

    return tls_problems(tls_settings(config))


def _below(protocol: SecurityProtocol) -> str:
    return "SSL" if protocol.uses_tls else "PLAINTEXT"


PRODUCER_CONFIG = ConfigSchema.of(
    "producer",
    (*CLIENT_KEYS, *CLIENT_SASL_KEYS, *PRODUCER_KEYS),
    (check_client, check_client_security, _check_producer),
    foreign={"consumer": CONSUMER_KEYS},
)
CONSUMER_CONFIG = ConfigSchema.of(
    "consumer",
    (*CLIENT_KEYS, *CLIENT_SASL_KEYS, *CONSUMER_KEYS),
    (check_client, check_client_security, _check_consumer),
    foreign={"producer": PRODUCER_KEYS},
)
_ADMIN_CLIENT_KEYS = tuple(replace(key, default=()) if key.name == "bootstrap.servers" else key for key in CLIENT_KEYS)
"""An admin client may be given ``bootstrap.controllers`` instead."""
ADMIN_CONFIG = ConfigSchema.of(
    "admin", (*_ADMIN_CLIENT_KEYS, *CLIENT_SASL_KEYS, *ADMIN_KEYS), (_check_admin, check_client_security)
)


def _check_registry(config: Config) -> list[str]:
    from moldau.runtime.config.urls import registry_problem  # most clients have none, nor urllib.parse

    problems = _tls_problems(config)
    if not config.get_list("schema.registry.url"):
        problems.append("schema.registry.url: must name at least one address")
    for url in config.get_list("schema.registry.url"):
        problem = registry_problem(url)
        if problem:
            login, at, rest = url.rpartition("@")
            shown = f"{login.partition('//')[0]}//{rest}" if at and "//" in login else rest
            problems.append(f"schema.registry.url = {shown!r}: {problem}")
    user = config.get("basic.auth.user.info")
    if isinstance(user, str) and ":" not in user:
        problems.append("basic.auth.user.info: must be USER:PASSWORD")
    if user is not None and config.get("bearer.auth.token") is not None:
        problems.append("basic.auth.user.info: cannot be combined with bearer.auth.token")
    return problems


REGISTRY_CONFIG = ConfigSchema.of("schema registry", REGISTRY_KEYS, (_check_registry,))
SERIALIZER_CONFIG = ConfigSchema.of("serializer", SERIALIZER_KEYS)
