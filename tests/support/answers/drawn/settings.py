"""Settings of topics, groups, subscriptions of metrics and brokers, with usual, empty and absurd values.

Those of brokers are only checked, because a broker would act on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from moldau.protocol.messages import alter_configs
from moldau.runtime.config.declaration import DynamicScope
from moldau.runtime.config.schemas import BROKER_CONFIG, GROUP_CONFIG, TOPIC_CONFIG
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, length, weighted
from support.answers.settings import APPEND, BROKER, DELETE, GROUP, METRICS, SET, SUBTRACT, TOPIC, change, description
from support.answers.topics import made

if TYPE_CHECKING:
    import random

_KINDS: Final = {"topic": TOPIC, "group": GROUP, "metrics": METRICS, "broker": BROKER, "brokers": BROKER}
_VALUES: Final = (
    *("", None, " 5 ", "-2", "-1", "0", "1", "2", "100", "1000", "60000", "86400000", "2147483647", "2147483648"),
    *("9223372036854775807", "9223372036854775808", "0.5", "1.0", "1.5", "-0.1", "1e-1", "NaN", "x", "a,b", ",", "*"),
    *("true", "TRUE", "false", "yes", "compact", "delete", "compact,delete", "delete,delete", "gzip", "uncompressed"),
    *("producer", "CreateTime", "LogAppendTime", "0:1", "0:1,1:1", "earliest", "latest", "by_duration:PT1H"),
    *("by_duration:x", "read_committed", "READ_COMMITTED", "uniform", "org.apache.kafka.", "client_id=x", "a=b"),
)
_WEIGHTS: Final = {"change": 60, "replace": 10, "describe": 20}


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
    return [_one(rng, weighted(rng, _WEIGHTS), rng.choice(kinds)) for _ in range(length(rng))]


def _one(rng: random.Random, kind: str, of: str) -> Step:
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

    async def prepare(self) -> None:
        """Creates a topic."""
        await made(self.session, "topic")

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

    async def _replace(self, name: str, drawn: Any) -> None:
        kind, resource = self._resource(drawn["of"])
        configs = [alter_configs.AlterableConfig(name=key, value=value) for key, value in drawn["changes"]]
        of = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=resource, configs=configs)
        request = alter_configs.AlterConfigsRequest(resources=[of], validate_only=kind == BROKER)
        await self.session.ask(name, request)
        self.changed[drawn["of"]].update(key for key, _ in drawn["changes"])

    async def _describe(self, name: str, drawn: Any) -> None:
        """Describes what was changed."""
        keys = sorted(self.changed[drawn["of"]] & set(_NAMES[drawn["of"]]))
        if keys and _KINDS[drawn["of"]] != BROKER:
            await trio.sleep(0.05)  # a broker of Kafka applies a change after the controller has answered it
            request = description(*self._resource(drawn["of"]), keys, synonyms=drawn["synonyms"])
            await self.session.ask(name, request)


SETTINGS: Final = Area(_Settings, _draw)
