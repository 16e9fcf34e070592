"""``moldau configs``: configuration of topics, brokers, groups and metrics subscriptions, and logger levels."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.options import BootstrapServer
from moldau_cli.endpoints import BootstrapController, with_admin_of
from moldau_cli.errors import UsageError
from moldau_cli.words import parse_settings, split_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau import Admin
    from moldau.admin import ConfigEntry, ConfigResource

commands = typer.Typer(
    help="Describe and alter the configuration of topics, brokers, groups and others.", rich_markup_mode=None
)


class EntityType(enum.StrEnum):
    """The types of entities that have a configuration."""

    TOPICS = "topics"
    BROKERS = "brokers"
    GROUPS = "groups"
    BROKER_LOGGERS = "broker-loggers"
    CLIENT_METRICS = "client-metrics"


Kind = Annotated[EntityType, typer.Option("--entity-type")]
Name = Annotated[str | None, typer.Option("--entity-name", help="Topic, group or subscription, or a broker id.")]
Default = Annotated[bool, typer.Option("--entity-default", help="The default of all brokers.")]


def _resource(kind: EntityType, name: str | None, *, is_default: bool) -> ConfigResource:
    from moldau.admin import ConfigResource, ResourceType

    if is_default:
        if name is not None:
            raise UsageError("give --entity-name or --entity-default, not both")
        if kind is not EntityType.BROKERS:
            raise UsageError(f"--entity-default goes with --entity-type brokers, not with {kind.value}")
        return ConfigResource(type=ResourceType.BROKER, name="")
    if not name:
        raise UsageError("--entity-name is missing" + (", or --entity-default" if kind is EntityType.BROKERS else ""))
    if kind in (EntityType.BROKERS, EntityType.BROKER_LOGGERS) and not name.isdecimal():
        raise UsageError(f"--entity-name: a broker id is a number, not {name!r}")
    types = {
        EntityType.TOPICS: ResourceType.TOPIC,
        EntityType.BROKERS: ResourceType.BROKER,
        EntityType.GROUPS: ResourceType.GROUP,
        EntityType.BROKER_LOGGERS: ResourceType.BROKER_LOGGER,
        EntityType.CLIENT_METRICS: ResourceType.CLIENT_METRICS,
    }
    return ConfigResource(type=types[kind], name=name)


@commands.command()
def describe(
    entity_name: Name = None,
    entity_type: Kind = EntityType.TOPICS,
    entity_default: Default = False,
    everything: Annotated[bool, typer.Option("--all", help="Show defaults too.")] = False,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Show configuration keys with their values and sources."""
    resource = _resource(entity_type, entity_name, is_default=entity_default)

    async def work(admin: Admin) -> list[ConfigEntry]:
        found = await admin.describe_configs([resource])
        return [entry for entries in found.values() for entry in entries.values()]

    shown = sorted(with_admin_of(bootstrap_server, bootstrap_controller, work), key=lambda entry: entry.name)
    output.answer_rows(
        "configs",
        ["key", "value", "source"],
        [
            {
                "key": entry.name,
                "value": "[hidden]" if entry.is_sensitive else entry.value,
                "source": entry.source.name.lower(),
                "read_only": entry.is_read_only,
            }
            for entry in shown
            if everything or not entry.is_default
        ],
    )


@commands.command()
def alter(
    entity_name: Name = None,
    entity_type: Kind = EntityType.TOPICS,
    entity_default: Default = False,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add-config",
            metavar="KEY=VALUE,...",
            help="A comma before a known key and = begins the next one; [V1,V2] is always one value.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--add-config-file", metavar="FILE", help="Keys of a properties or TOML file.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="KEY", help="Reset to the default.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Set keys, or reset them to their defaults."""
    settings = {
        **({} if file is None else _settings_of(file)),
        **parse_settings(split_settings(add or [], _key_test(entity_type)), "--add-config"),
    }
    if not settings and not remove:
        raise UsageError("nothing to change: give --add-config, --add-config-file or --delete-config")
    resource = _resource(entity_type, entity_name, is_default=entity_default)

    async def work(admin: Admin) -> None:
        from moldau.admin import ConfigAlteration, ConfigOperation

        changes = [ConfigAlteration(name=key, value=value) for key, value in settings.items()]
        changes += [ConfigAlteration(name=key, operation=ConfigOperation.DELETE) for key in remove or []]
        if remove:
            await _refuse_unknown(admin, resource, remove)
        await admin.alter_configs({resource: changes})

    with_admin_of(bootstrap_server, bootstrap_controller, work)
    changed = [*settings, *(remove or [])]
    entity = entity_name or "all brokers"
    output.answer({"entity": entity, "changed": list(changed)}, f"changed {', '.join(changed)} of {entity}")


def _key_test(kind: EntityType) -> Callable[[str], bool]:
    """Returns the function that knows the configuration keys of a type of entities."""
    from moldau.runtime.config import BROKER_CONFIG, CLIENT_METRICS_CONFIG, GROUP_CONFIG, TOPIC_CONFIG

    if kind is EntityType.BROKER_LOGGERS:
        return bool  # a level has no comma, and each name is one of a logger
    schema = {
        EntityType.TOPICS: TOPIC_CONFIG,
        EntityType.BROKERS: BROKER_CONFIG,
        EntityType.GROUPS: GROUP_CONFIG,
        EntityType.CLIENT_METRICS: CLIENT_METRICS_CONFIG,
    }[kind]

    def is_key(name: str) -> bool:
        try:
            schema.key(name)
        except KeyError:
            return name in schema.refused
        return True

    return is_key


async def _refuse_unknown(admin: Admin, resource: ConfigResource, keys: list[str]) -> None:
    """Refuses to reset keys that the entity cannot have: the cluster would change nothing, and report success.

    Raises:
        UsageError: there is one. Clusters refuse unknown keys of brokers themselves.
    """
    from moldau.admin import ResourceType
    from moldau.runtime.config import CLIENT_METRICS_CONFIG, GROUP_CONFIG
    from moldau.runtime.config.nearest import NearestNames

    # Kafka's brokers describe no keys of a subscription that does not exist.
    kinds: dict[ResourceType, tuple[str, Iterable[str]]] = {
        ResourceType.TOPIC: ("topics have", ()),
        ResourceType.GROUP: ("groups have", GROUP_CONFIG.keys),
        ResourceType.CLIENT_METRICS: ("client metrics have", CLIENT_METRICS_CONFIG.keys),
    }
    if resource.type not in kinds:
        return
    owners, own = kinds[resource.type]
    known = {entry.name for entry in (await admin.describe_configs([resource]))[resource].values()} | set(own)
    for key in keys:
        if key not in known:
            near = NearestNames(sorted(known)).find(key)
            hint = "" if near is None else f"; did you mean {near}?"
            raise UsageError(f"{owners} no configuration {key!r}{hint}")


def _settings_of(file: Path) -> dict[str, str]:
    """Returns the keys of a file with their values.

    Raises:
        UsageError: the file cannot be read.
    """
    from moldau.runtime.config import ConfigError, parse_config_text

    try:
        given = parse_config_text(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    except ConfigError as error:
        raise UsageError(f"{file}: {'; '.join(error.problems)}") from error
    return {
        key: ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for key, value in given.items()
    }
