"""``moldau tokens``: delegation tokens."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau_cli import output
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.commands.administration.typed import typed_line
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from moldau import Admin
    from moldau.admin import DelegationToken

commands = typer.Typer(help="Create, renew, expire and describe delegation tokens.", rich_markup_mode=None)

Owner = Annotated[
    str | None,
    typer.Option("--owner-principal", metavar="User:NAME", help="Owner; default: the principal that creates it."),
]
Hmac = Annotated[
    str, typer.Option("--hmac", metavar="BASE64", help="The token's secret; - reads it from standard input.")
]

_DATES_END_MS: Final = 253_402_300_800_000
"""The beginning of the year 10000, which no date can name."""


def _time(time_ms: int) -> str:
    if time_ms >= _DATES_END_MS:
        return "after 9999-12-31T23:59:59+00:00"  # the configuration may set no limit in practice
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _row(token: DelegationToken) -> dict[str, output.Json]:
    return {
        "token_id": token.token_id,
        "hmac": token.hmac,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),  # the name of a certificate has commas
        "issued": _time(token.issue_ms),
        "expires": _time(token.expiry_ms),
        "max": _time(token.max_ms),
        "issue_ms": token.issue_ms,
        "expiry_ms": token.expiry_ms,
        "max_ms": token.max_ms,
    }


_COLUMNS = ["token_id", "hmac", "owner", "requester", "renewers", "issued", "expires", "max"]


@commands.command()
def create(
    owner: Owner = None,
    renewer: Annotated[
        list[str] | None, typer.Option("--renewer-principal", metavar="User:NAME", help="May renew it too.")
    ] = None,
    max_life: Annotated[
        int, typer.Option("--max-life-time-period", metavar="MS", help="Greatest life; -1: the cluster's.")
    ] = -1,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Create a token; its id and HMAC are user and password of a SCRAM login with tokenauth="true"."""

    async def work(admin: Admin) -> DelegationToken:
        return await admin.create_delegation_token(owner=owner, renewers=renewer or (), max_lifetime_ms=max_life)

    output.answer_rows("tokens", _COLUMNS, [_row(with_admin(bootstrap_server, work))])


@commands.command()
def renew(
    hmac: Hmac,
    period: Annotated[
        int, typer.Option("--renew-time-period", metavar="MS", help="Time until it expires; -1: the cluster's.")
    ] = -1,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Extend a token's life."""
    secret = _secret(hmac)

    async def work(admin: Admin) -> int:
        return await admin.renew_delegation_token(secret, period_ms=period)

    expiry_ms = with_admin(bootstrap_server, work)
    output.answer({"expiry_ms": expiry_ms}, f"expires {_time(expiry_ms)}")


@commands.command()
def expire(
    hmac: Hmac,
    period: Annotated[
        int, typer.Option("--expiry-time-period", metavar="MS", help="Time until it expires; -1: it ends now.")
    ] = -1,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Change when a token expires, or end it."""
    secret = _secret(hmac)

    async def work(admin: Admin) -> int:
        return await admin.expire_delegation_token(secret, period_ms=period)

    expiry_ms = with_admin(bootstrap_server, work)
    output.answer({"expiry_ms": expiry_ms}, f"expires {_time(expiry_ms)}")


@commands.command()
def describe(
    owner: Annotated[
        list[str] | None, typer.Option("--owner-principal", metavar="User:NAME", help="Tokens of this owner only.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Describe the tokens that you may see, with their secrets."""

    async def work(admin: Admin) -> list[DelegationToken]:
        return await admin.describe_delegation_tokens(owner)

    output.answer_rows("tokens", _COLUMNS, [_row(token) for token in with_admin(bootstrap_server, work)])


def _secret(hmac: str) -> str:
    found = typed_line("the HMAC") if hmac == "-" else hmac
    if not found.strip():
        raise UsageError("the HMAC is empty: give it to --hmac, or with --hmac - as one line on standard input")
    return found.strip()
