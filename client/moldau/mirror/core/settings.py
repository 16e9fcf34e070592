"""The file of a mirror: its own keys, the clusters, and the keys of each source. Pure.

    target = "hub"
    "exactly.once.source.support" = "enabled"

    [clusters.hub]
    "bootstrap.servers" = "hub-1:9092"

    [clusters.east]
    "bootstrap.servers" = "east-1:9092"
    "consumer.fetch.max.bytes" = 52428800

    [sources.east]
    topics = ["orders.*"]

Keys outside of a table hold for all sources. A cluster's table has keys of Kafka's clients; a key with the prefix
``admin.``, ``producer.`` or ``consumer.`` holds for clients of that kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.mirror.core.filters import NameFilter, TopicRules
from moldau.mirror.core.maker_keys import advice
from moldau.mirror.core.policy import ReplicationPolicy
from moldau.mirror.core.topics import ConfigRules
from moldau.runtime.config import (
    ADMIN_CONFIG,
    CONSUMER_CONFIG,
    MIRROR_CONFIG,
    MIRROR_SOURCE_CONFIG,
    PRODUCER_CONFIG,
    Config,
    ConfigError,
    ConfigSchema,
    parse_address,
)
from moldau.runtime.config.nearest import nearest_names
from moldau.runtime.config.text import flattened, toml_document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KINDS: Final[Mapping[str, ConfigSchema]] = {
    "admin": ADMIN_CONFIG,
    "consumer": CONSUMER_CONFIG,
    "producer": PRODUCER_CONFIG,
}
_ALIAS: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_TABLES: Final = ("clusters", "sources")
_FORCED: Final[Mapping[str, Mapping[str, object]]] = {
    "admin": {},
    "consumer": {
        "allow.auto.create.topics": False,
        "auto.offset.reset": "none",
        "check.crcs": True,
        "enable.auto.commit": False,
    },
    "producer": {"acks": "all", "enable.idempotence": True},
}
"""Client keys on which the mirror's guarantees rest."""
_REFUSED: Final = ("group.id", "transactional.id", *(key for keys in _FORCED.values() for key in keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How to connect to one cluster; ``keys`` are client keys, some with the prefix of a kind of client."""

    alias: str
    keys: Mapping[str, object]

    def client(self, kind: str, **more: object) -> dict[str, object]:
        """Returns the configuration of a client of this kind: admin, consumer or producer.

        ``more`` holds further keys, with underscores for dots.
        """
        schema = KINDS[kind]
        found = {key: value for key, value in self.keys.items() if key in schema.keys}
        found |= {key.removeprefix(f"{kind}."): value for key, value in self.keys.items() if key.startswith(f"{kind}.")}
        found |= _FORCED[kind]
        return found | {key.replace("_", "."): value for key, value in more.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """One source and what is mirrored from it to the target."""

    cluster: ClusterSettings
    target: ClusterSettings
    config: Config
    mirror_name: str
    retry_max_ms: int

    @property
    def alias(self) -> str:
        """The alias of the source."""
        return self.cluster.alias

    @property
    def target_alias(self) -> str:
        """The alias of the target."""
        return self.target.alias

    @property
    def policy(self) -> ReplicationPolicy:
        """The rules of names."""
        return ReplicationPolicy(
            renames=self.config.get_str("replication.policy.class").endswith("DefaultReplicationPolicy"),
            separator=self.config.get_str("replication.policy.separator"),
        )

    @property
    def topic_rules(self) -> TopicRules:
        """The topics that are mirrored."""
        return TopicRules(
            policy=self.policy,
            target_alias=self.target_alias,
            names=NameFilter(self.config.get_list("topics"), self.config.get_list("topics.exclude")),
            mirrors_heartbeats=self.config.get_bool("heartbeats.replication.enabled"),
        )

    @property
    def group_filter(self) -> NameFilter:
        """The groups whose offsets are translated."""
        return NameFilter(self.config.get_list("groups"), self.config.get_list("groups.exclude"))

    @property
    def config_rules(self) -> ConfigRules:
        """The topic configurations that are copied."""
        return ConfigRules(
            names=NameFilter((".*",), self.config.get_list("config.properties.exclude")),
            uses_source_defaults=self.config.get_str("use.defaults.from") == "source",
        )

    @property
    def is_exactly_once(self) -> bool:
        """Whether records and positions are written in one transaction."""
        return self.config.get_str("exactly.once.source.support") == "enabled"

    @property
    def writes_checkpoints(self) -> bool:
        """Whether groups' offsets are translated, which needs offset syncs."""
        return self.config.get_bool("emit.checkpoints.enabled") and self.config.get_bool("emit.offset-syncs.enabled")

    @property
    def syncs_lie_in_source(self) -> bool:
        """Whether the topic of offset syncs lies in the source cluster."""
        return self.config.get_str("offset-syncs.topic.location") == "source"

    @property
    def offset_syncs_topic(self) -> str:
        """The topic of offset syncs; its name has the alias of the other cluster."""
        return self.policy.offset_syncs_topic(self.target_alias if self.syncs_lie_in_source else self.alias)

    @property
    def transactional_id(self) -> str:
        """The transactional id of the mirror from this source to the target."""
        return f"{self.mirror_name}.{self.alias}.{self.target_alias}"

    @property
    def transaction_timeout_ms(self) -> int:
        """The producer's ``transaction.timeout.ms``."""
        return PRODUCER_CONFIG.parse(self.target.client("producer")).get_int("transaction.timeout.ms")

    def delivery_timeout_ms(self, end_timeout_ms: float) -> int:
        """Returns the ``delivery.timeout.ms`` of the producer with transactions.

        A partition of the target without a leader must fail before the transaction does, or the wait for its end
        (``end_timeout_ms``): only then its records are known as the reason, and the others are copied without them.
        """
        config = PRODUCER_CONFIG.parse(self.target.client("producer"))
        least_ms = config.get_int("linger.ms") + config.get_int("request.timeout.ms")
        wanted_ms = int(min(config.get_int("transaction.timeout.ms"), end_timeout_ms)) // 2
        return min(config.get_int("delivery.timeout.ms"), max(wanted_ms, least_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """A whole mirror: several sources, one target."""

    config: Config
    target: ClusterSettings
    sources: tuple[SourceSettings, ...]

    @property
    def metrics_listener(self) -> tuple[str, int] | None:
        """Host and port of the metrics endpoint, None for none."""
        text = self.config.get_str("metrics.listener")
        return parse_address(text) if text else None


def parse_settings(
    text: str,
    file_name: str,
    resolve: Callable[[dict[str, object]], dict[str, object]] = lambda given: given,
) -> MirrorSettings:
    """Parses the file of a mirror. ``resolve`` replaces references to values that stand elsewhere.

    Raises:
        ConfigError: names every problem; unknown keys with the nearest known one.
    """
    try:
        document = toml_document(text)
    except ValueError as error:
        raise ConfigError([f"{file_name}: not TOML: {error}"]) from None
    tables = {name: document.pop(name, {}) for name in _TABLES}
    problems: list[str] = []
    for name, table in tables.items():
        if not isinstance(table, dict) or not all(isinstance(each, dict) for each in table.values()):
            raise ConfigError([f"{file_name}: {name} must consist of tables such as [{name}.east]"])
        problems += [
            f"[{name}.{alias}]: an alias consists of letters, digits, - and _, 100 at most"
            for alias in table
            if not _ALIAS.fullmatch(alias)
        ]
    common = resolve(flattened(document, file_name))
    config = _parsed(MIRROR_CONFIG, common, "", problems)
    clusters = {
        alias: _cluster(alias, resolve(flattened(table, file_name)), problems)
        for alias, table in tables["clusters"].items()
    }
    shared = {key: value for key, value in common.items() if key in MIRROR_SOURCE_CONFIG.keys}
    per_source = {
        alias: _parsed(
            MIRROR_SOURCE_CONFIG, shared | resolve(flattened(table, file_name)), f"[sources.{alias}] ", problems
        )
        for alias, table in tables["sources"].items()
    }
    target = "" if config is None else config.get_str("target")
    problems += _wiring_problems(target, tuple(clusters), tuple(per_source))
    if config is None or problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    sources = tuple(
        SourceSettings(
            cluster=clusters[alias],
            target=clusters[target],
            config=source,
            mirror_name=config.get_str("name"),
            retry_max_ms=config.get_int("retry.backoff.max.ms"),
        )
        for alias, source in per_source.items()
        if source is not None
    )
    if problems := [problem for source in sources for problem in _transaction_problems(source)]:
        raise ConfigError(problems)
    return MirrorSettings(config=config, target=clusters[target], sources=sources)


def _parsed(schema: ConfigSchema, given: dict[str, object], place: str, problems: list[str]) -> Config | None:
    """Returns the configuration, None if there are problems; one that is known without ``place`` is not repeated."""
    own = dict(given)
    for key in given:
        hint = None if key in schema.keys else advice(key)
        if hint is not None:
            problems.append(f"{place}{key}: a key of MirrorMaker; {hint}")
            del own[key]
    try:
        config = schema.parse(own)
        if "metrics.listener" in config and config.get_str("metrics.listener"):
            parse_address(config.get_str("metrics.listener"))
    except ConfigError as error:
        problems += [place + problem for problem in error.problems if problem not in problems]
        return None
    except ValueError as error:
        problems.append(f"metrics.listener: {error}")
        return None
    return config


def _cluster(alias: str, given: dict[str, object], problems: list[str]) -> ClusterSettings:
    place = f"[clusters.{alias}] "
    settings = ClusterSettings(alias=alias, keys=given)
    found: list[str] = []
    for key in given:
        kind, dot, rest = key.partition(".")
        plain = rest if dot and kind in KINDS else key
        if plain in _REFUSED:
            found.append(f"{key}: the mirror sets it; leave it out")
        elif (dot and kind in KINDS and rest not in KINDS[kind].keys) or (
            plain == key and not any(key in schema.keys for schema in KINDS.values())
        ):
            names = tuple(dict.fromkeys(name for schema in KINDS.values() for name in schema.keys))
            nearest = nearest_names(names).find(plain)
            found.append(f"{key}: unknown client configuration key" + (f"; did you mean {nearest}?" if nearest else ""))
    if not found:
        for kind, schema in KINDS.items():
            try:
                schema.parse(settings.client(kind))
            except ConfigError as error:
                found += error.problems
    problems += [place + problem for problem in dict.fromkeys(found)]
    return settings


def _transaction_problems(source: SourceSettings) -> list[str]:
    """Returns whether the target would abort each transaction of a source before the mirror commits it."""
    key, limit_ms = "transaction.boundary.interval.ms", source.transaction_timeout_ms
    if not source.is_exactly_once or source.config.get_int(key) < limit_ms:
        return []
    needed = f"must be below {limit_ms}, the producer.transaction.timeout.ms of [clusters.{source.target_alias}]"
    return [f"[sources.{source.alias}] {key} = {source.config.get_int(key)}: {needed}"]


def _wiring_problems(target: str, clusters: tuple[str, ...], sources: tuple[str, ...]) -> list[str]:
    problems: list[str] = []
    if not sources:
        problems.append("no source: a table [sources.ALIAS] is missing")
    for role, alias in [*((f"sources.{alias}", alias) for alias in sources), ("target", target)]:
        if alias and alias not in clusters:
            nearest = nearest_names(clusters).find(alias)
            hint = f"; did you mean {nearest}?" if nearest else ""
            problems.append(f"{role}: there is no table [clusters.{alias}]{hint}")
    if target in sources:
        problems.append(f"[sources.{target}]: the target cannot be a source of itself")
    return problems
