"""The schemas of nodes, topics and groups, and the way from texts to a node's configuration and to a topic's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moldau.runtime.config.declaration import LONG_MAX, Config, ConfigError, ConfigSchema, Value
from moldau.runtime.config.keys.coordinator import GROUP_KEYS, TRANSACTION_KEYS
from moldau.runtime.config.keys.groups.group import (
    CLIENT_METRICS_KEYS,
    GROUP_CONFIG_KEYS,
    NOT_SERVED,
    check_bounds,
    check_client_metrics,
    check_group,
    check_group_defaults,
)
from moldau.runtime.config.keys.groups.share import SHARE_KEYS
from moldau.runtime.config.keys.groups.streams import STREAMS_KEYS
from moldau.runtime.config.keys.kafka_names import KAFKA_KEYS, KAFKA_PREFIXES, unserved_reason
from moldau.runtime.config.keys.log import LOG_KEYS, RETENTION_KEYS
from moldau.runtime.config.keys.mirror import MIRROR_KEYS, SOURCE_KEYS
from moldau.runtime.config.keys.node import NETWORK_KEYS, NODE_KEYS, QUORUM_KEYS
from moldau.runtime.config.keys.remote_log import REMOTE_STORE_KEYS
from moldau.runtime.config.keys.remote_log_reading import REMOTE_READING_KEYS
from moldau.runtime.config.keys.remote_log_tasks import REMOTE_TASK_KEYS
from moldau.runtime.config.keys.replication import FETCH_KEYS, REPLICATION_KEYS
from moldau.runtime.config.keys.sasl import SASL_KEYS
from moldau.runtime.config.keys.security import SECURITY_KEYS
from moldau.runtime.config.keys.topic import TOPIC_KEYS
from moldau.runtime.config.keys.views import VIEW_KEYS
from moldau.runtime.config.listeners import (
    CORDONED_LOG_DIRS,
    LISTENER_PREFIX,
    check_server,
    connections_of_ips,
    controller_listener_names,
    controller_protocol,
    cordon_problem,
    inter_broker_listener_name,
    inter_broker_protocol,
    listeners,
)
from moldau.runtime.config.nearest import nearest_names
from moldau.runtime.config.processes import check_processes
from moldau.runtime.config.providers import resolve
from moldau.runtime.config.sasl import (
    MECHANISMS,
    bootstrap_credentials,
    check_offered,
    controller_login,
    inter_broker_login,
    listener_sasl,
    principal_rules,
    problems_of,
)
from moldau.runtime.config.text import environment_overrides, parse_config_text, unknown_variables
from moldau.runtime.config.tls import tls_problems, tls_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _check_connections(config: Config) -> list[str]:
    """Refuses exceptions that cannot be read, and a bound that admits no address at all, brokers' among them."""
    key = "max.connections.per.ip"
    if config.get_int(key) == 0 and not config.get_list(f"{key}.overrides"):
        return [f"{key} = 0: needs {key}.overrides, which names the addresses that are admitted"]
    return problems_of(connections_of_ips, config)


def _check_super_users(config: Config) -> list[str]:
    """Refuses names that no principal has, above all a list with commas, which would be one name.

    A comma may be part of a distinguished name (``User:CN=a,O=b``), but not before another ``User:``.
    """
    for each in config.get_str("super.users").split(";"):
        kind, _, name = each.strip().partition(":")
        if each.strip() and not (kind and name and ",User:" not in name.replace(" ", "")):
            form = "expected principals such as User:alice, separated by semicolons"
            return [f"super.users: {form}, not {each.strip()!r}"]
    return []


def _check_protocols(config: Config) -> list[str]:
    problems = problems_of(controller_protocol, config)
    if problems:
        return problems
    for endpoint in listeners(config):
        if endpoint.security_protocol.uses_tls:
            problems += tls_problems(tls_settings(config, endpoint.listener_name), server=endpoint.listener_name)
            problems += problems_of(principal_rules, config, endpoint.listener_name)
        if endpoint.security_protocol.uses_sasl:
            problems += problems_of(listener_sasl, config, endpoint.listener_name)
    problems += _login_problems(config)
    problems += problems_of(bootstrap_credentials, config)
    return list(dict.fromkeys(problems))


def _login_problems(config: Config) -> list[str]:
    """Checks how this node authenticates itself to brokers and to controllers."""
    problems: list[str] = []
    roles = config.get_list("process.roles")
    if controller_protocol(config).uses_sasl:
        problems += problems_of(controller_login, config)
        if "controller" in roles:
            listener = controller_listener_names(config)[0]
            problems += problems_of(check_offered, config, listener, "sasl.mechanism.controller.protocol")
    if "broker" in roles and inter_broker_protocol(config).uses_sasl:
        problems += problems_of(inter_broker_login, config)
        listener = inter_broker_listener_name(config)
        problems += problems_of(check_offered, config, listener, "sasl.mechanism.inter.broker.protocol")
    return problems


def _check_topic(config: Config) -> list[str]:
    problems: list[str] = []
    least, greatest = config.get_int("min.compaction.lag.ms"), config.get_int("max.compaction.lag.ms")
    if least > greatest:
        problems.append(f"min.compaction.lag.ms = {least}: must not be above max.compaction.lag.ms = {greatest}")
    return problems


def _check_topic_defaults(config: Config) -> list[str]:
    """Checks the defaults of topics: a node whose defaults no topic could have would fail with its first topic."""
    try:
        topic_config(config, {})
    except ConfigError as error:
        return [f"defaults of topics: {problem}" for problem in error.problems]
    if not config.get_bool("remote.log.storage.system.enable"):
        return []
    return [f"defaults of topics: {problem}" for problem in local_retention_problems(topic_config(config, {})).values()]


def _check_retention(config: Config) -> list[str]:
    """Refuses an age of 0 for all topics, as Kafka does: it would delete what every topic without its own age holds."""
    explicit = config.explicit()
    given = next((name for name in RETENTION_KEYS if explicit.get(name) is not None), None)
    return [f"{given} = 0: must be at least 1, or -1 for no end"] if given and explicit[given] == 0 else []


def _check_remote_store(config: Config) -> list[str]:
    """Checks that a broker with tiered storage names its store, which the start opens without a request."""
    enabled = config.get_bool("remote.log.storage.system.enable") and "broker" in config.get_list("process.roles")
    if enabled and not config.get_str_or_none("remote.log.storage.url"):
        return ["remote.log.storage.system.enable = true: a broker needs remote.log.storage.url, too"]
    return []


def _check_follower_waits(config: Config) -> list[str]:
    """Checks that a leader does not hold an idle fetch so long that its follower gives up, or is taken for slow.

    A follower fetches a new partition with its next request, so replication of that would wait as long, too.
    """
    wait_ms = config.get_int("replica.fetch.wait.max.ms")
    return [
        f"replica.fetch.wait.max.ms = {wait_ms}: must not be above {key} = {config.get_int(key)}"
        for key in ("replica.socket.timeout.ms", "replica.lag.time.max.ms")
        if wait_ms > config.get_int(key)
    ]


def local_retention_problems(config: Config) -> dict[str, str]:
    """Returns why the local retention of a topic does not fit its retention, by key (KIP-405).

    Without tiered storage, local retention has no effect, and any value fits.
    """
    problems: dict[str, str] = {}
    for name in ("retention.bytes", "retention.ms"):
        whole, local = config.get_int(name), config.get_int(f"local.{name}")
        if whole >= 0 and (local == -1 or local > whole):
            problems[f"local.{name}"] = f"local.{name} = {local}: must not be above {name} = {whole}"
    return problems


def tiered_topic_problems(config: Config, *, is_system_enabled: bool) -> dict[str, str]:
    """Returns why a topic with these effective values cannot be tiered, by key; empty if it is not (KIP-405, KIP-950).

    Brokers do not check this, and no broker leaves such a value out: it would lose the records that only the object
    store has.
    """
    if not config.get_bool("remote.storage.enable"):
        return {}
    problems = local_retention_problems(config)
    if not is_system_enabled:
        problems["remote.storage.enable"] = (
            "remote.storage.enable = true: needs remote.log.storage.system.enable = true on all nodes"
        )
    policy = config.get_list("cleanup.policy")
    if tuple(policy) != ("delete",):
        problems["cleanup.policy"] = (
            f"cleanup.policy = {','.join(policy)}: must be delete with remote.storage.enable = true"
        )
    if config.get_bool("remote.log.copy.disable"):
        for name in ("retention.bytes", "retention.ms"):
            whole, local = config.get_int(name), config.get_int(f"local.{name}")
            if local not in (-2, whole):
                problems[f"local.{name}"] = (
                    f"local.{name} = {local}: must be -2 (or {whole}, the value of {name}) with "
                    f"remote.log.copy.disable = true: no more segments are copied, so disks keep what {name} demands"
                )
    return problems


BROKER_CONFIG = ConfigSchema.of(
    "broker",
    (
        *NODE_KEYS,
        *VIEW_KEYS,
        *QUORUM_KEYS,
        *NETWORK_KEYS,
        *LOG_KEYS,
        *REPLICATION_KEYS,
        *FETCH_KEYS,
        *REMOTE_STORE_KEYS,
        *REMOTE_READING_KEYS,
        *REMOTE_TASK_KEYS,
        *GROUP_KEYS,
        *TRANSACTION_KEYS,
        *SHARE_KEYS,
        *STREAMS_KEYS,
        *SASL_KEYS,
        *SECURITY_KEYS,
    ),
    (
        check_server,
        _check_connections,
        _check_super_users,
        _check_protocols,
        _check_topic_defaults,
        _check_retention,
        _check_remote_store,
        _check_follower_waits,
        check_group_defaults,
        check_processes,
    ),
    listener_prefix=LISTENER_PREFIX,
    unserved=KAFKA_KEYS,
    unserved_prefixes=KAFKA_PREFIXES,
)
TOPIC_CONFIG = ConfigSchema.of("topic", TOPIC_KEYS, (_check_topic,))
GROUP_CONFIG = ConfigSchema.of("group", GROUP_CONFIG_KEYS, (check_group,), refused=NOT_SERVED)
CLIENT_METRICS_CONFIG = ConfigSchema.of("client metrics", CLIENT_METRICS_KEYS, (check_client_metrics,))


def _check_mirror_source(config: Config) -> list[str]:
    problems: list[str] = []
    for key in ("topics", "topics.exclude", "groups", "groups.exclude", "config.properties.exclude"):
        for text in config.get_list(key):
            try:
                re.compile(text)
            except (re.error, OverflowError, RecursionError) as error:
                problems.append(f"{key} = {text!r}: is no regular expression: {error}")
    separator = config.get_str("replication.policy.separator")
    if not separator:
        problems.append("replication.policy.separator: must not be empty")
    elif not re.fullmatch(r"[A-Za-z0-9._-]+", separator):
        problems.append(f"replication.policy.separator = {separator!r}: topics have letters, digits, '.', '_' and '-'")
    if config.get_bool("sync.group.offsets.enabled") and not config.get_bool("emit.checkpoints.enabled"):
        problems.append("sync.group.offsets.enabled: needs emit.checkpoints.enabled = true")
    wants_checkpoints = config.is_set("emit.checkpoints.enabled") and config.get_bool("emit.checkpoints.enabled")
    if wants_checkpoints and not config.get_bool("emit.offset-syncs.enabled"):
        problems.append("emit.checkpoints.enabled: needs emit.offset-syncs.enabled = true")
    if config.get_int("replication.factor") == 0:
        problems.append("replication.factor = 0: must be at least 1, or -1 for the brokers' default")
    return problems


MIRROR_SOURCE_CONFIG = ConfigSchema.of("mirror source", SOURCE_KEYS, (_check_mirror_source,))
MIRROR_CONFIG = ConfigSchema.of("mirror", (*MIRROR_KEYS, *SOURCE_KEYS), (_check_mirror_source,))


def unserved_keys(config: Config) -> tuple[str, ...]:
    """Returns the keys of Kafka that a node's configuration sets and that have no effect here; worth a warning."""
    return tuple(sorted(name for name in config.explicit() if config.schema.is_unserved(name)))


def unserved_texts(names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the warnings about keys without effect: keys, joined by commas, and why; one for each reason."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(unserved_reason(name) or "these keys of Kafka have no effect in Moldau", []).append(name)
    return [(",".join(keys), reason) for reason, keys in found.items()]


def listener_key_problems(config: Config) -> list[str]:
    """Returns what is wrong with keys of single listeners and mechanisms whose names no listener looks up.

    A listener would be less protected than its operator intended. Files are checked, and a broker's changes of its own
    keys; not the values of metadata, because controllers do not know the listeners of brokers.
    """
    names = {name.partition(":")[0].strip().lower() for name in config.get_list("listener.security.protocol.map")}
    names |= {name.lower() for name in controller_listener_names(config)}
    mechanisms = ("gssapi", *(mechanism.lower() for mechanism in MECHANISMS))
    problems: list[str] = []
    for key in sorted(config.explicit()):
        if not key.startswith(LISTENER_PREFIX):
            continue
        name, _, rest = key.removeprefix(LISTENER_PREFIX).partition(".")
        problems += _name_problem(key, "listener", name, sorted(names))
        if rest not in config.schema.keys and rest not in config.schema.unserved:
            problems += _name_problem(key, "SASL mechanism", rest.partition(".")[0], mechanisms)
    return problems


def _name_problem(key: str, kind: str, name: str, known: Sequence[str]) -> list[str]:
    if name in known:
        return []
    nearest = nearest_names(tuple(known)).find(name)
    return [f"{key}: there is no {kind} {name}" + (f"; did you mean {nearest}?" if nearest else "")]


def parse_server_config(text: str, file_name: str, environ: Mapping[str, str]) -> Config:
    """Parses the configuration file of a node, with the ``MOLDAU_`` variables of ``environ`` on top.

    Raises:
        ConfigError: also for a ``MOLDAU_`` variable that stands for no key.
    """
    given = parse_config_text(text, file_name)
    given.update(environment_overrides(BROKER_CONFIG, environ))
    given = resolve(given, environ)
    unknown = unknown_variables(BROKER_CONFIG, environ)
    try:
        config = BROKER_CONFIG.parse(given)
    except ConfigError as error:
        raise ConfigError([*unknown, *error.problems]) from None
    # A value that was set while the broker ran may name directories that are gone; the file may not.
    cordons = cordon_problem(config, config.get_list(CORDONED_LOG_DIRS))
    problems = [*unknown, *([] if cordons is None else [cordons]), *listener_key_problems(config)]
    if problems:
        raise ConfigError(problems)
    return config


def group_config(broker: Config, overrides: Mapping[str, str]) -> Config:
    """Returns the configuration of a group under a node's file.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    config = GROUP_CONFIG.parse(overrides)
    problems = check_bounds(config, broker)
    if problems:
        raise ConfigError(problems)
    return config


def topic_defaults(broker: Config) -> dict[str, Value]:
    """Returns the value that the broker's keys give to each topic key.

    It is that of the first synonym that is set, else the default.
    """
    defaults: dict[str, Value] = {}
    for key in TOPIC_CONFIG.keys.values():
        for synonym in key.synonyms:
            value = broker.get(synonym.name)
            if broker.is_set(synonym.name) and value is not None:
                if synonym.factor != 1:
                    assert isinstance(value, int)
                    value = -1 if value < 0 else min(value * synonym.factor, LONG_MAX)
                defaults[key.name] = value
                break
    return defaults


def topic_config(broker: Config, overrides: Mapping[str, str]) -> Config:
    """Returns the configuration of a topic: ``overrides`` on top of the broker's keys.

    ``is_set`` is true for keys that the topic or the broker set. Only ``overrides`` count as set by the topic.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
    """
    given: dict[str, object] = dict(topic_defaults(broker))
    given.update(overrides)
    return TOPIC_CONFIG.parse(given)
