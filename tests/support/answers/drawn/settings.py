"""Settings of topics, groups, subscriptions of metrics and brokers, with usual, empty and absurd values.

Those of brokers are mostly checked only, because a broker would act on them; chosen ones change, and change back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from moldau.protocol.messages import alter_configs
from moldau.runtime.config.declaration import DynamicScope
from moldau.runtime.config.schemas import BROKER_CONFIG, GROUP_CONFIG, TOPIC_CONFIG
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, length, weighted
from support.answers.settings import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    LOGGER,
    METRICS,
    SET,
    SUBTRACT,
    TOPIC,
    change,
    description,
)
from support.answers.topics import made

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

_KINDS: Final = {"topic": TOPIC, "group": GROUP, "metrics": METRICS, "broker": BROKER, "brokers": BROKER}
_VALUES: Final = (
    *("", None, " 5 ", "-2", "-1", "0", "1", "2", "100", "1000", "60000", "86400000", "2147483647", "2147483648"),
    *("9223372036854775807", "9223372036854775808", "0.5", "1.0", "1.5", "-0.1", "1e-1", "NaN", "x", "a,b", ",", "*"),
    *("true", "TRUE", "false", "yes", "compact", "delete", "compact,delete", "delete,delete", "gzip", "uncompressed"),
    *("producer", "CreateTime", "LogAppendTime", "0:1", "0:1,1:1", "earliest", "latest", "by_duration:PT1H"),
    *("by_duration:x", "read_committed", "READ_COMMITTED", "uniform", "org.apache.kafka.", "client_id=x", "a=b"),
)
_WEIGHTS: Final = {"change": 60, "replace": 10, "describe": 20}
_OF_BROKERS: Final = {"apply": 40, "exchange": 6, "describe_applied": 25, "level": 6}
"""Real changes, and what shows them."""
_APPLIED: Final[dict[str, tuple[str, ...]]] = {
    "log.retention.ms": ("1000000", "-1", "5000000"),
    "log.cleanup.policy": ("compact", "delete", "delete,compact", "zip", "compact,"),
    "min.insync.replicas": ("1", "2", "0"),
    "compression.type": ("gzip", "producer", "zip"),
    "compression.gzip.level": ("0", "5", "-1"),
    "message.max.bytes": ("2000000", "-1"),
    "log.flush.interval.messages": ("1000", "0"),
    "log.roll.ms": ("1000000",),
    "log.index.interval.bytes": ("8192",),
    "log.message.timestamp.type": ("LogAppendTime", "CreateTime"),
    "log.message.timestamp.after.max.ms": ("1000000",),
    "unclean.leader.election.enable": ("true", "false", "yes"),
    "log.cleaner.min.cleanable.ratio": ("0.7",),
    "log.cleaner.min.compaction.lag.ms": ("10", "100"),
    "log.cleaner.max.compaction.lag.ms": ("1000", "500"),
    "leader.replication.throttled.rate": ("1000000000",),
    "follower.replication.throttled.rate": ("1000000000", "-1"),
    "replica.alter.log.dirs.io.max.bytes.per.second": ("1000000000",),
    "log.cleaner.backoff.ms": ("15000",),
    "num.io.threads": ("6",),
    "background.threads": ("8",),
    "producer.id.expiration.ms": ("86400000", "0"),
    "transaction.partition.verification.enable": ("true", "false"),
    "max.connections": ("2000",),
    "log.local.retention.ms": ("1000", "-2"),
    "nope": ("1",),
    "log.dirs": ("/nowhere",),
}
"""Keys of brokers that change, with values with which a broker goes on."""
_NOT_SHOWN: Final = (
    "nope",
    "log.dirs",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
)
"""Keys that are not described: Kafka shows the rates only if they are set."""
_IN_OTHER_UNITS: Final = ("log.retention.ms", "log.roll.ms")
"""Keys of one broker that are not described: Kafka shows the default of the key in hours among their synonyms."""
_ALONE: Final = ("nope", "log.dirs", "min.insync.replicas", "num.io.threads", "log.local.retention.ms")
"""Keys with rules: no other key changes with them."""
_LAST: Final = "log.segment.delete.delay.ms"
"""A key that no step changes: its change is the last one."""


def _names() -> dict[str, tuple[str, ...]]:
    def of(schema: Any) -> tuple[str, ...]:
        return tuple(sorted(key for key, each in schema.keys.items() if not each.is_own and each.has_effect))

    # What cannot change at run time is refused here; Kafka takes it, and does nothing.
    brokers = tuple(
        key
        for key in of(BROKER_CONFIG)
        if BROKER_CONFIG.key(key).dynamic is not DynamicScope.READ_ONLY and not key.startswith(("ssl.", "sasl."))
    )
    return {
        "topic": of(TOPIC_CONFIG),
        "group": tuple(key for key in of(GROUP_CONFIG) if key != "streams.task.offset.interval.ms"),  # not described
        "metrics": ("interval.ms", "metrics", "match"),
        "broker": brokers,
        "brokers": brokers,
    }


_NAMES: Final = _names()


def _draw(rng: random.Random) -> list[Step]:
    kinds = rng.sample(list(_KINDS), rng.randint(1, 3))
    weights = _WEIGHTS | (_OF_BROKERS if rng.random() < 0.25 else {})
    return [_one(rng, weighted(rng, weights), rng.choice(kinds)) for _ in range(length(rng))]


def _one(rng: random.Random, kind: str, of: str) -> Step:
    if kind == "level":
        operation = rng.choices((SET, DELETE, APPEND), (8, 1, 1))[0]
        return Step(
            kind,
            {"of": "logger", "level": rng.choice(("INFO", "WARN", "error", "LOUD", "", None)), "operation": operation},
        )
    if kind == "describe_applied":
        return Step(kind, {"of": rng.choice(("broker", "brokers", "topic")), "synonyms": rng.random() < 0.7})
    if kind in ("apply", "exchange"):
        of = rng.choice(("broker", "brokers", "brokers"))
        number = rng.choices((1, 2, 3), (75, 20, 5))[0]
        keys = rng.choices([key for key in _APPLIED if number == 1 or key not in _ALONE], k=number)
        operations = rng.choices((SET, DELETE, APPEND, SUBTRACT), (75, 17, 4, 4), k=len(keys))
        real = [(key, operation, rng.choice(_APPLIED[key])) for key, operation in zip(keys, operations, strict=True)]
        drawn = {"of": of, "name": keys[0], "operation": operations[0], "twice": len(set(keys)) < len(keys)}
        return Step(kind, {**drawn, "changes": real})
    if kind == "describe":
        return Step(kind, {"of": of, "synonyms": rng.random() < 0.5})
    number = rng.choices((1, 2), (9, 1))[0] if of in ("topic", "group") else 1  # the others have rules for single names
    names = rng.choices(_NAMES[of] if rng.random() < 0.97 else ("nope", ""), k=number)
    if kind == "replace":
        return Step(kind, {"of": of, "name": names[0], "changes": [(name, rng.choice(_VALUES)) for name in names]})
    operations = rng.choices((SET, DELETE, APPEND, SUBTRACT), (70, 12, 10, 8), k=len(names))
    changes = [(name, operation, rng.choice(_VALUES)) for name, operation in zip(names, operations, strict=True)]
    drawn = {"of": of, "name": names[0], "operation": operations[0], "changes": changes}
    return Step(kind, {**drawn, "checks": rng.random() < 0.2})


class _Settings(World):
    """Sends steps to one broker, and remembers its answers."""

    def __init__(self, session: DrawnSession) -> None:
        self.session = session
        self.changed: dict[str, set[str]] = {of: set() for of in _KINDS}
        self.changes = 0
        self.has_applied = False

    async def prepare(self) -> None:
        """Creates a topic, and begins with brokers without settings."""
        await made(self.session, "topic")
        await self._cleared()

    async def send(self, name: str, step: Step) -> None:
        """Sends one step."""
        await getattr(self, f"_{step.kind}")(name, step.drawn)

    def _resource(self, of: str) -> tuple[int, str]:
        return _KINDS[of], {"broker": "1", "brokers": ""}.get(of) or ("" if of == "brokers" else self.session.name(of))

    async def _change(self, name: str, drawn: Any) -> None:
        of = drawn["of"]
        only_checked = drawn["checks"] or _KINDS[of] == BROKER
        await self.session.ask(name, change(*self._resource(of), drawn["changes"], validate=only_checked))
        self.changed[of].update(key for key, _, _ in drawn["changes"])

    def _replacement(
        self, of: str, changes: Sequence[tuple[str, str | None]], *, checks: bool
    ) -> alter_configs.AlterConfigsRequest:
        kind, name = self._resource(of)
        configs = [alter_configs.AlterableConfig(name=key, value=value) for key, value in changes]
        resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        return alter_configs.AlterConfigsRequest(resources=[resource], validate_only=checks)

    async def _replace(self, name: str, drawn: Any) -> None:
        of = drawn["of"]
        request = self._replacement(of, drawn["changes"], checks=_KINDS[of] == BROKER)
        await self.session.ask(name, request)
        self.changed[drawn["of"]].update(key for key, _ in drawn["changes"])

    async def _describe(self, name: str, drawn: Any) -> None:
        """Describes what was changed."""
        keys = sorted(self.changed[drawn["of"]] & set(_NAMES[drawn["of"]]))
        if keys and _KINDS[drawn["of"]] != BROKER:
            await trio.sleep(0.05)  # a broker of Kafka applies a change after the controller has answered it
            request = description(*self._resource(drawn["of"]), keys, synonyms=drawn["synonyms"])
            await self.session.ask(name, request)

    async def _apply(self, name: str, drawn: Any) -> None:
        """Changes brokers."""
        await self.session.ask(name, change(*self._resource(drawn["of"]), drawn["changes"]))
        self.has_applied = True
        await self._settled()

    async def _exchange(self, name: str, drawn: Any) -> None:
        """Replaces all settings of brokers."""
        changes = [(key, value) for key, _, value in drawn["changes"]]
        await self.session.ask(name, self._replacement(drawn["of"], changes, checks=False))
        self.has_applied = True
        await self._settled()

    async def _settled(self) -> None:
        """Waits until the broker has applied all changes: one more change follows them, and is visible."""
        self.changes += 1
        wanted = str(10**7 + self.changes)
        await self.session.quietly(change(BROKER, "1", [(_LAST, SET, wanted)]))
        for _ in range(400):
            found = await self.session.quietly(description(BROKER, "1", [_LAST]))
            if [each.value for each in found.results[0].configs] == [wanted]:
                return
            await trio.sleep(0.02)

    async def _describe_applied(self, name: str, drawn: Any) -> None:
        of = drawn["of"]
        keys = [key for key in _APPLIED if key not in _NOT_SHOWN]
        if of == "broker":
            keys = [key for key in keys if key not in _IN_OTHER_UNITS]
        if of == "topic":
            keys = [key.name for key in TOPIC_CONFIG.keys.values() if any(each.name in keys for each in key.synonyms)]
        await self.session.ask(name, description(*self._resource(of), keys, synonyms=drawn["synonyms"]))

    async def _level(self, name: str, drawn: Any) -> None:
        await self.session.ask(name, change(LOGGER, "1", [("root", drawn["operation"], drawn["level"])]))
        await self.session.ask(f"{name} described", description(LOGGER, "1", ["root"]))

    async def finish(self) -> None:
        """Takes all changes of brokers back."""
        if self.has_applied:
            await self._cleared()

    async def _cleared(self) -> None:
        """Deletes all settings of brokers, but for one that must stay."""
        for of, configs in (("broker", []), ("brokers", [("min.insync.replicas", "1")])):
            await self.session.quietly(self._replacement(of, configs, checks=False))
        await self._settled()


SETTINGS: Final = Area(_Settings, _draw)
