"""Options of Kafka's tools that Moldau's commands have in another form, for the error about an unknown option. Pure.

Kafka's tools have one command each, whose actions are options (``kafka-topics --list``) and which take each name as an
option. Here actions are commands, and names are arguments. The guide to the command line has the same facts as tables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_KEYS: Final = "-X KEY=VALUE, with Kafka's keys"
_KEY_FILE: Final = "--command-config FILE"
_EVERYWHERE: Final = {
    "--broker-list": "--bootstrap-server",
    "--bootstrap-servers": "--bootstrap-server",
    "--zookeeper": "--bootstrap-server: there is no ZooKeeper",
    "--command-property": f"{_KEY_FILE}, with Kafka's keys",
}
_CLIENTS: Final = {
    "--command-property": _KEYS,
    "--consumer-property": _KEYS,
    "--producer-property": _KEYS,
    "--consumer.config": _KEY_FILE,
    "--producer.config": _KEY_FILE,
    "--consumer-config": _KEY_FILE,
    "--producer-config": _KEY_FILE,
}
_PRINTED: Final = (
    "--show-key (print.key), --key-delimiter (key.separator), --delimiter (line.separator), --null (null.literal), "
    "and --format or --json for timestamps, partitions, offsets and headers"
)
_READ: Final = (
    "--key-separator (parse.key, key.separator), --parse-headers (parse.headers), --headers-delimiter and its like, "
    "and --null (null.marker)"
)
_SCHEMAS: Final = "--key-format and --value-format, with --registry for a schema registry"
_OF_OFFSETS: Final = {
    "--to-earliest": "--to earliest",
    "--to-latest": "--to latest",
    "--to-current": "--to current",
    "--reset-offsets": "the command itself: leave it out",
    "--execute": "the default: leave it out, or give --dry-run to change nothing",
}
_ENTITIES: Final = {
    "--topic": "--entity-type topics --entity-name NAME",
    "--broker": "--entity-type brokers --entity-name ID",
    "--broker-defaults": "--entity-type brokers --entity-default",
    "--broker-logger": "--entity-type broker-loggers --entity-name ID",
    "--group": "--entity-type groups --entity-name GROUP",
    "--client-metrics": "--entity-type client-metrics --entity-name NAME",
    "--user": "moldau quotas or moldau users",
    "--user-defaults": "moldau quotas",
    "--client": "moldau quotas",
    "--client-defaults": "moldau quotas",
    "--ip": "moldau quotas",
    "--ip-defaults": "moldau quotas",
}
_BY_COMMAND: Final[Mapping[str, Mapping[str, str]]] = {
    "consume": {
        **_CLIENTS,
        "--max-messages": "--count N",
        "--whitelist": "--include REGEX",
        "--property": _PRINTED,
        "--formatter-property": _PRINTED,
        "--formatter": "--output or --format",
        "--formatter-config": "--registry-config FILE",
        "--key-deserializer": _SCHEMAS,
        "--value-deserializer": _SCHEMAS,
        "--skip-message-on-error": "--skip-errors",
    },
    "produce": {
        **_CLIENTS,
        "--property": _READ,
        "--reader-property": _READ,
        "--reader-config": "--registry-config FILE",
        "--line-reader": "--input",
        "--compression-codec": "--compression",
        "--request-required-acks": "--acks",
        "--request-timeout-ms": "-X request.timeout.ms=N",
        "--timeout": "-X linger.ms=N",
        "--batch-size": "-X batch.size=N",
        "--max-partition-memory-bytes": "-X batch.size=N",
        "--max-memory-bytes": "-X buffer.memory=N",
        "--max-block-ms": "-X max.block.ms=N",
        "--message-send-max-retries": "-X retries=N",
        "--retry-backoff-ms": "-X retry.backoff.ms=N",
        "--metadata-expiry-ms": "-X metadata.max.age.ms=N",
        "--socket-buffer-size": "-X send.buffer.bytes=N",
        "--sync": "the rule: the command ends when all records are acknowledged",
    },
    "topics list": {"--topic": "--include REGEX"},
    "topics describe": {"--exclude-internal-topics": "--exclude-internal"},
    "topics alter": {
        "--config": "moldau configs alter --entity-name TOPIC --add-config KEY=VALUE",
        "--delete-config": "moldau configs alter --entity-name TOPIC --delete-config KEY",
    },
    "topics delete-records": {"--offset-json-file": "--file"},
    "configs describe": _ENTITIES,
    "configs alter": _ENTITIES,
    "groups describe": {
        "--members": "part of the answer, for groups of the consumer protocol",
        "--offsets": "the answer without options",
        "--state": "part of the answer",
        "--verbose": "--json",
    },
    "groups reset": _OF_OFFSETS,
    "share-groups offsets reset": _OF_OFFSETS,
    "streams-groups reset": {
        "--reset-offsets": _OF_OFFSETS["--reset-offsets"],
        "--execute": _OF_OFFSETS["--execute"],
        "--to-earliest": "the default: leave it out",
    },
    "offsets": {
        "--partitions": "TOPIC:0,1 as argument",
        "--topic-partitions": "TOPIC:0,1 as argument",
        "--exclude-internal-topics": "--exclude-internal",
    },
    "elect": {
        "--election-type": "the default (preferred), or --unclean",
        "--all-topic-partitions": "the default: leave it out",
        "--path-to-json-file": "--topic and --partition",
    },
    "reassign plan": {
        "--broker-list": "--brokers IDS",
        "--topics-to-move-json-file": "--topic NAME",
    },
    "reassign execute": {
        "--additional": "the rule: leave it out",
        "--replica-alter-log-dirs-throttle": "moldau logdirs move --throttle",
    },
    "log dump": {
        "--deep-iteration": "--print-data-log",
        "--value-decoder-class": "moldau consume, which decodes values",
        "--max-message-size": "no limit: leave it out",
    },
    "logdirs describe": {"--broker-list": "--broker ID", "--topic-list": "--topic NAME"},
    "txns list": {"--duration-filter": "--running-longer-than MS"},
}
_ACTIONS: Final = {
    "--reset-offsets": ("reset", "offsets reset"),
    "--delete-offsets": ("delete-offsets", "offsets delete"),
    "--generate": ("plan",),
    "--files": ("dump",),
    "--replication": ("status",),
}
"""Actions of Kafka's tools that have another name here; the first one counts that the group has."""
_COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "quorum": {
        "describe": "quorum status",
        "add-controller": "quorum add-voter",
        "remove-controller": "quorum remove-voter",
    },
    "cluster": {
        "cluster-id": "cluster status --json",
        "unregister": "brokers unregister",
        "list-endpoints": "brokers list",
    },
    "txns": {"describe-producers": "txns producers", "forceTerminateTransaction": "txns terminate"},
    "features": {"disable": "features downgrade"},
    "node": {"random-uuid": "node cluster-id"},
    "groups": {"reset-offsets": "groups reset"},
}
"""Actions that Kafka's tools have as commands, too."""
_NAMES: Final = frozenset({"--topic", "--group", "--files", "--reassignment-json-file", "--transactional-id", "--name"})
"""Options with the names that commands here take as arguments."""
_OTHER_ENTITY: Final = re.compile(r"'--entity-type': '(users|clients|ips)' is not one of.*")


def option_here(command: str, option: str, *, subcommands: Collection[str] = (), argument: str | None = None) -> str:
    """Returns what a user of Kafka's tools should write instead of an unknown option; empty if nothing is known.

    Args:
        command: The command without the name of the program, such as ``groups reset``.
        option: The unknown option.
        subcommands: The commands of a group; of other commands none.
        argument: The form of the command's first argument, if it has one.
    """
    if subcommands:
        actions: Sequence[str] = (option.removeprefix("--"), *_ACTIONS.get(option, ()))
        found = next((each for each in actions if each.split()[0] in subcommands), None)
        return "" if found is None else f"moldau {command} {found}"
    known = _BY_COMMAND.get(command, {}).get(option) or _EVERYWHERE.get(option)
    if known is None and option in _NAMES and argument is not None:
        known = f"an argument: moldau {command} {argument}"
    if known is None and option.removeprefix("--") == command.rpartition(" ")[2]:
        known = "the command itself: leave it out"
    return known or ""


def command_here(group: str, word: str) -> str:
    """Returns the command for a word that Kafka's tool of a group takes; empty if it takes no such word."""
    return _COMMANDS.get(group, {}).get(word, "")


def value_here(text: str) -> str:
    """Returns a text about a wrong value of an option, with the command that serves what the user asked for."""
    found = _OTHER_ENTITY.search(text)
    if found is None:
        return text
    others = {"users": "moldau quotas or moldau users", "clients": "moldau quotas", "ips": "moldau quotas"}
    return f"{text[: found.start()]}'--entity-type': the configuration of {found[1]} is that of {others[found[1]]}"
