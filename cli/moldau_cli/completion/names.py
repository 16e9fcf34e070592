"""Names that complete an argument: topics and groups of the cluster, and profiles.

A completion has nowhere to write an error, and the user waits for it. So it asks a cluster for at most
``ANSWER_S``, only if an option, the environment, a profile or ./moldau-cluster names one, and completes nothing if that
fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer  # noqa: TC002 - typer reads the annotations of completers

from moldau_cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau import Admin

ANSWER_S: Final = 1.5
NAMES_MAX: Final = 1000


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of topics; internal ones only behind ``_``."""

    async def ask(admin: Admin) -> list[str]:
        listed = await admin.list_topics(include_internal=incomplete.startswith("_"))
        return [topic.name for topic in listed]

    return _of_cluster(ctx, incomplete, ask)


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes ids of groups."""

    async def ask(admin: Admin) -> list[str]:
        from moldau_cli.operations.partial import ask_groups

        listed, _ = await ask_groups(admin, within_s=ANSWER_S / 2)  # what other brokers know comes in time
        return [group.group_id for group in listed]

    return _of_cluster(ctx, incomplete, ask)


def profiles(incomplete: str) -> list[str]:
    """Completes names of profiles."""
    from moldau_cli.profiles.store import load_profiles

    try:
        return [name for name in sorted(load_profiles().by_name) if name.startswith(incomplete)]
    except CommandError:
        return []


def _of_cluster(ctx: typer.Context, incomplete: str, ask: Callable[[Admin], Awaitable[list[str]]]) -> list[str]:
    from moldau_cli.client.address import CLUSTER_FILE, bootstrap_of, named_address
    from moldau_cli.client.running import run
    from moldau_cli.client.settings import command_config

    given = ctx.params.get("bootstrap_server")
    try:
        if named_address(given) is None and not CLUSTER_FILE.exists():
            return []
        address = bootstrap_of(given)

        async def work() -> list[str]:
            import trio

            from moldau import Admin

            limit_ms = str(round(ANSWER_S * 1000))
            limits = {"default.api.timeout.ms": limit_ms, "request.timeout.ms": limit_ms}
            with trio.move_on_after(ANSWER_S):
                async with Admin({**command_config("admin"), **limits, "bootstrap.servers": address}) as admin:
                    return await ask(admin)
            return []

        found = run(work, address, probes=False)
    except CommandError:
        return []
    return sorted(name for name in found if name.startswith(incomplete))[:NAMES_MAX]
