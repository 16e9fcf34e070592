"""``moldau configs``: configuration of topics and brokers."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client import BootstrapServer, with_admin
from moldau_cli.commands.cluster import parse_settings
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from moldau import Admin
    from moldau.admin import ConfigEntry, ConfigResource

commands = typer.Typer(help="Describe and alter the configuration of topics and brokers.", rich_markup_mode=None)


class EntityType(enum.StrEnum):
    """What has a configuration."""

    TOPICS = "topics"
    BROKERS = "brokers"


Kind = Annotated[EntityType, typer.Option("--entity-type")]
Name = Annotated[str, typer.Option("--entity-name", help="Topic name or broker id.")]


def _resource(kind: EntityType, name: str) -> ConfigResource:
    from moldau.admin import ConfigResource, ResourceType

    if kind is EntityType.BROKERS and not name.isdigit():
        raise UsageError(f"--entity-name: a broker id is a number, not {name!r}")
    return ConfigResource(type=ResourceType.TOPIC if kind is EntityType.TOPICS else ResourceType.BROKER, name=name)


@commands.command()
def describe(
    entity_name: Name,
    entity_type: Kind = EntityType.TOPICS,
    everything: Annotated[bool, typer.Option("--all", help="Show defaults too.")] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show configuration keys with their values and where they come from."""
    resource = _resource(entity_type, entity_name)

    async def work(admin: Admin) -> list[ConfigEntry]:
        found = await admin.describe_configs([resource])
        return [entry for entries in found.values() for entry in entries.values()]

    shown = sorted(with_admin(bootstrap_server, work), key=lambda entry: entry.name)
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
    entity_name: Name,
    entity_type: Kind = EntityType.TOPICS,
    add: Annotated[list[str] | None, typer.Option("--add-config", metavar="KEY=VALUE")] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="KEY", help="Back to the default.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Set keys, or give them back to their defaults."""
    settings = parse_settings(add or [])
    if not settings and not remove:
        raise UsageError("nothing to change: give --add-config or --delete-config")
    resource = _resource(entity_type, entity_name)

    async def work(admin: Admin) -> None:
        from moldau.admin import ConfigAlteration, ConfigOperation

        changes = [ConfigAlteration(name=key, value=value) for key, value in settings.items()]
        changes += [ConfigAlteration(name=key, operation=ConfigOperation.DELETE) for key in remove or []]
        await admin.alter_configs({resource: changes})

    with_admin(bootstrap_server, work)
    changed = [*settings, *(remove or [])]
    output.answer({"entity": entity_name, "changed": list(changed)}, f"changed {', '.join(changed)} of {entity_name}")
