"""``moldau quotas``: how much users, client ids and addresses may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau.admin.calls.quotas import QuotaAlteration, QuotaEntity, QuotaName
from moldau.values import list_elements
from moldau_cli import output
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.errors import UsageError
from moldau_cli.words import refuse_principal

if TYPE_CHECKING:
    from moldau import Admin
    from moldau.admin.calls.quotas import ClientQuota

commands = typer.Typer(help="Show, set and delete client quotas.", rich_markup_mode=None)
COLUMNS = ["user", "client-id", "ip", "quota", "value"]
DEFAULT_NAME = "<default>"
CLIENT_QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
IP_QUOTAS = ("connection_creation_rate",)

User = Annotated[str | None, typer.Option("--user", help="Name of a user, without User:.")]
UserDefaults = Annotated[bool, typer.Option("--user-defaults", help="Users without a quota of their own.")]
Client = Annotated[str | None, typer.Option("--client", help="A client id.")]
ClientDefaults = Annotated[bool, typer.Option("--client-defaults", help="Client ids without a quota of their own.")]
Ip = Annotated[str | None, typer.Option("--ip", help="An address.")]
IpDefaults = Annotated[bool, typer.Option("--ip-defaults", help="Addresses without a quota of their own.")]
Add = Annotated[
    list[str] | None,
    typer.Option("--add-config", metavar="KEY=VALUE[,...]", help="e.g. producer_byte_rate=1048576."),
]
Delete = Annotated[list[str] | None, typer.Option("--delete-config", metavar="KEY[,...]", help="Removes a quota.")]


@commands.command()
def describe(
    user: User = None,
    user_defaults: UserDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show the quotas that are set: all, or those of an entity and of entities with further parts."""
    wanted = _entity(user, client, ip, user_defaults, client_defaults, ip_defaults)

    async def work(admin: Admin) -> list[ClientQuota]:
        return await admin.describe_client_quotas(wanted)

    rows: list[dict[str, output.Json]] = [
        {**_names(found.entity), "quota": key, "value": value if output.wants_json() else _shown(value)}
        for found in with_admin(bootstrap_server, work)
        for key, value in sorted(found.quotas.items())
    ]
    output.answer_rows("quotas", COLUMNS, rows)


@commands.command()
def alter(
    user: User = None,
    user_defaults: UserDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    add_config: Add = None,
    delete_config: Delete = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Set and remove quotas of a user, a client id, both together, or an address; brokers obey at once."""
    entity = _named(user, client, ip, user_defaults, client_defaults, ip_defaults)
    known = IP_QUOTAS if entity.ip is not None else CLIENT_QUOTAS
    changes: dict[str, float | None] = {_quota(key, known): None for key in _split(delete_config)}
    for text in _split(add_config):
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--add-config takes KEY=VALUE, not {text!r}")
        if changes.get(key.strip(), 0) is None:
            raise UsageError(f"{key.strip()} is named by both --add-config and --delete-config")
        changes[_quota(key.strip(), known)] = _number(key.strip(), value)
    if add_config and user is not None:  # those that earlier versions have set can be removed
        refuse_principal("--user", user)
    if not changes:
        raise UsageError("nothing to change: give --add-config or --delete-config")
    _change(entity, changes, bootstrap_server)


@commands.command()
def delete(
    user: User = None,
    user_defaults: UserDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete all quotas of exactly one entity."""
    entity = _named(user, client, ip, user_defaults, client_defaults, ip_defaults)

    async def work(admin: Admin) -> list[str]:
        found = await admin.describe_client_quotas(entity, strict=True)
        changes: dict[str, float | None] = {key: None for each in found for key in sorted(each.quotas)}
        if not changes:
            raise UsageError(f"no quota is set for {entity}")
        await admin.alter_client_quotas([QuotaAlteration(entity=entity, quotas=changes)])
        return list(changes)

    deleted = with_admin(bootstrap_server, work)
    output.answer({**_names(entity), "deleted": [*deleted]}, f"deleted {', '.join(deleted)} of {entity}")


def _shown(value: float) -> str:
    """Returns a quota as people write it: 10485760, not 10485760.0 or 1.04858e+07."""
    return str(int(value)) if value.is_integer() else str(value)


def _change(entity: QuotaEntity, changes: dict[str, float | None], bootstrap_server: str | None) -> None:
    async def work(admin: Admin) -> None:
        await admin.alter_client_quotas([QuotaAlteration(entity=entity, quotas=changes)])

    with_admin(bootstrap_server, work)
    shown = ", ".join(f"{key} removed" if value is None else f"{key}={_shown(value)}" for key, value in changes.items())
    output.answer({**_names(entity), "changed": {**changes}}, f"{entity}: {shown}")


def _entity(
    user: str | None,
    client: str | None,
    ip: str | None,
    user_defaults: bool,
    client_defaults: bool,
    ip_defaults: bool,
) -> QuotaEntity:
    def name(option: str, given: str | None, *, is_default: bool) -> str | QuotaName | None:
        if given is not None and is_default:
            raise UsageError(f"--{option} and --{option}-defaults exclude each other")
        if given == "":
            raise UsageError(f"--{option} needs a name")
        return QuotaName.DEFAULT if is_default else given

    found = QuotaEntity(
        user=name("user", user, is_default=user_defaults),
        client_id=name("client", client, is_default=client_defaults),
        ip=name("ip", ip, is_default=ip_defaults),
    )
    if found.ip is not None and (found.user is not None or found.client_id is not None):
        raise UsageError("an address has quotas of its own: leave --user and --client out")
    return found


def _named(
    user: str | None,
    client: str | None,
    ip: str | None,
    user_defaults: bool,
    client_defaults: bool,
    ip_defaults: bool,
) -> QuotaEntity:
    found = _entity(user, client, ip, user_defaults, client_defaults, ip_defaults)
    if found == QuotaEntity():
        raise UsageError("name an entity: --user, --client or --ip, or their defaults")
    return found


def _split(texts: list[str] | None) -> list[str]:
    return [part for text in texts or [] for part in list_elements(text)]


def _quota(key: str, known: tuple[str, ...]) -> str:
    if key not in known:
        raise UsageError(f"quota {key!r} is not one of {', '.join(known)}")
    return key


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"{key} must be a number above 0, not {text!r}") from error
    if not 0 < value < float("inf"):
        raise UsageError(f"{key} must be a number above 0, not {text!r}")
    return value


def _names(entity: QuotaEntity) -> dict[str, str]:
    def shown(name: str | QuotaName | None) -> str:
        return "" if name is None else DEFAULT_NAME if isinstance(name, QuotaName) else name

    return {"user": shown(entity.user), "client-id": shown(entity.client_id), "ip": shown(entity.ip)}
