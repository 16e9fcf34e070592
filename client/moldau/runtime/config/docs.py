"""Writes docs/config.md from the declarations: ``python -m moldau.runtime.config.docs > docs/config.md``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from moldau.runtime.config.client_schemas import (
    ADMIN_CONFIG,
    CONSUMER_CONFIG,
    PRODUCER_CONFIG,
    REGISTRY_CONFIG,
    SERIALIZER_CONFIG,
)
from moldau.runtime.config.declaration import REQUIRED, ConfigKey, ConfigType, DynamicScope
from moldau.runtime.config.keys.kafka_names import UNSERVED_REASONS
from moldau.runtime.config.schemas import (
    BROKER_CONFIG,
    CLIENT_METRICS_CONFIG,
    GROUP_CONFIG,
    MIRROR_CONFIG,
    TOPIC_CONFIG,
)
from moldau.runtime.config.share_schema import SHARE_CONSUMER_CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterable

_INTRODUCTION = """# Configuration

This page is generated from the declarations in `moldau.runtime.config` (`python -m moldau.runtime.config.docs`). Names
and defaults are Apache Kafka's, except where a key is marked *Moldau*: Kafka has no such key, or another default or
range.

A node reads one file, `moldau server CONFIG`: Java properties, or TOML where the name ends in `.toml` (tables join
their names with dots, lists may be lists). An environment variable overrides a key: `MOLDAU_LOG_DIRS` is `log.dirs`.
An unknown key, or a `MOLDAU_` variable without a key, is an error that names the nearest known key. Keys of Kafka's
brokers and controllers that Moldau does not serve are accepted with a warning; the last section names them.
Changes at run time: *read-only* keys need a restart, *per-broker* keys can be changed for one broker, *cluster-wide*
ones also for all.

`moldau configs` describes and alters values in the cluster's metadata: `--entity-type topics`, `brokers` (one by
`--entity-name`, all by `--entity-default`), `groups` and `client-metrics`. `--entity-type broker-loggers` changes the
levels of a node's loggers (`OFF`, `FATAL`, `ERROR`, `WARN`, `INFO`, `DEBUG`, `TRACE`) until it stops.

One environment variable belongs to no key: with `MOLDAU_PURE_PYTHON=1`, nodes, clients and tools use the record loops
in plain Python although the extension modules are there, as on a machine without a C compiler. Records are then ten to
a hundred times slower, and each node or client warns once (`records-in-pure-python`).
"""


def _default(key: ConfigKey) -> str:
    if key.default is REQUIRED:
        return "required"
    if key.default is None:
        return "none"
    text = key.format(key.default)
    return f"`{text}`" if text else "empty"


def _row(key: ConfigKey, *, is_broker: bool) -> str:
    doc = ("*Moldau.* " if key.is_own else "") + key.doc
    if key.synonyms:
        doc += " Broker: " + ", ".join(f"`{synonym.name}`" for synonym in key.synonyms) + "."
    allowed = "secret" if key.type is ConfigType.PASSWORD else key.allowed()
    change = f" | {key.dynamic.value}" if is_broker else ""
    return f"| `{key.name}` | {_default(key)} | {allowed} | {doc}{change} |"


def _section(title: str, keys: Iterable[ConfigKey], *, is_broker: bool = False) -> list[str]:
    lines = [f"## {title}", ""]
    groups: dict[str, list[ConfigKey]] = {}
    for key in keys:
        groups.setdefault(key.group, []).append(key)
    for group, members in groups.items():
        lines += [f"### {group}", ""]
        lines.append("| key | default | allowed | meaning |" + (" change |" if is_broker else ""))
        lines.append("|---|---|---|---|" + ("---|" if is_broker else ""))
        lines.extend(_row(key, is_broker=is_broker) for key in members)
        lines.append("")
    return lines


def _unserved_section() -> list[str]:
    names = ", ".join(f"`{name}`" for name in sorted(BROKER_CONFIG.unserved))
    reasons = [f"| `{name}` | {reason} |" for name, reason in sorted(UNSERVED_REASONS.items())]
    prefixes = ", ".join(f"`{prefix}`" for prefix in BROKER_CONFIG.unserved_prefixes)
    return [
        "## Keys of Kafka without effect",
        "",
        "A node accepts these keys of Kafka 4, keeps their values as text, and warns that they have no effect: "
        f"{names}, and all keys that begin with {prefixes}.",
        "",
        "The reasons for keys of tiered storage:",
        "",
        "| key, or begin of keys | reason |",
        "|---|---|",
        *reasons,
        "",
    ]


def render() -> str:
    """Returns docs/config.md."""
    lines = [_INTRODUCTION]
    lines += _section("Nodes (brokers and controllers)", BROKER_CONFIG.keys.values(), is_broker=True)
    lines += _section("Topics", TOPIC_CONFIG.keys.values())
    lines += _section("Groups", GROUP_CONFIG.keys.values())
    refused = "; ".join(f"`{name}` ({why})" for name, why in GROUP_CONFIG.refused.items())
    lines += [f"These keys of Kafka's groups are refused with the reason: {refused}.", ""]
    lines += _section("Client metrics", CLIENT_METRICS_CONFIG.keys.values())
    lines += _section("Producer", PRODUCER_CONFIG.keys.values())
    lines += _section("Consumer", CONSUMER_CONFIG.keys.values())
    lines += _section("Share consumer", SHARE_CONSUMER_CONFIG.keys.values())
    lines += _section("Admin client", ADMIN_CONFIG.keys.values())
    lines += _section("Schema registry client", REGISTRY_CONFIG.keys.values())
    lines += _section("Serializers with a schema registry", SERIALIZER_CONFIG.keys.values())
    lines += _section("Mirror", MIRROR_CONFIG.keys.values())
    lines += _unserved_section()
    assert all(isinstance(key.dynamic, DynamicScope) for key in BROKER_CONFIG.keys.values())
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(render())
