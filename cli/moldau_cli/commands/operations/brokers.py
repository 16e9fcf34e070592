"""``moldau brokers``: lists brokers and their APIs, moves everything away from one, removes its registration."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.answers import refuse_failures
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.commands.operations.balance import BATCH, STALL_S, Batch, Stall, Throttle
from moldau_cli.errors import CommandError
from moldau_cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau import Admin
    from moldau.admin import ApiVersion
    from moldau.protocol.errors import KafkaError

commands = typer.Typer(help="List, drain and unregister brokers.", rich_markup_mode=None)

Broker = Annotated[int, typer.Argument(metavar="BROKER", min=0, help="Id of a broker.")]


@commands.command("list")
def list_brokers(bootstrap_server: BootstrapServer = None) -> None:
    """List the registered brokers with their replicas, leaders and bytes; fenced ones are down or not ready.

    A cordoned broker serves its replicas and gets no new ones, because all its log directories are cordoned.
    """
    from moldau.runtime.config import join_address
    from moldau_cli.operations.survey import survey

    seen = with_admin(bootstrap_server, partial(survey, with_moves=False))
    held, led, preferred, lagging = Counter[int](), Counter[int](), Counter[int](), Counter[int]()
    for topic in seen.topics.values():
        for part in topic.partitions:
            held.update(part.replicas)
            led[part.leader] += 1
            preferred[part.replicas[0]] += 1
            lagging.update(set(part.replicas) - set(part.isr))
    stored = Counter[int]()
    for (_, _, node), size in seen.sizes.items():
        stored[node] += size
    rows: list[dict[str, output.Json]] = [
        {
            "broker": node,
            "address": join_address(seen.nodes[node].host, seen.nodes[node].port),
            "rack": one.rack,
            "state": "fenced" if not one.is_live else "cordoned" if one.is_excluded else "running",
            "replicas": held[node],
            "out_of_sync": lagging[node],
            "leaders": led[node],
            "preferred": preferred[node],
            "bytes": stored[node] if node in seen.described else None,
        }
        for node, one in sorted(seen.brokers.items())
    ]
    columns = ["broker", "address", "rack", "state", "replicas", "out_of_sync", "leaders", "preferred", "bytes"]
    output.answer_rows("brokers", columns, rows)
    refuse_failures("log directories are missing", seen.failures)


@commands.command("api-versions")
def api_versions(
    broker: Annotated[
        list[int] | None, typer.Option(min=0, help="Only these brokers; default: all in service.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show the APIs of each broker: first and last version, and the version in which this client would send it."""
    from moldau_cli.operations.partial import ask_api_versions

    async def work(admin: Admin) -> tuple[dict[int, list[ApiVersion]], Mapping[str, KafkaError]]:
        return await ask_api_versions(admin, broker or ())

    found, failures = with_admin(bootstrap_server, work)
    output.answer_rows(
        "api_versions",
        ["broker", "key", "api", "min", "max", "used"],
        [
            {
                "broker": node,
                "key": api.key,
                "api": api.name,
                "min": api.version_min,
                "max": api.version_max,
                "used": api.used,
            }
            for node, apis in sorted(found.items())
            for api in apis
        ],
    )
    refuse_failures("APIs are missing", failures)


@commands.command()
def drain(
    broker: Broker,
    throttle: Throttle = None,
    batch: Batch = BATCH,
    timeout: Stall = STALL_S,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would move.")] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Move all replicas, and with them all leaders, away from a broker; it may be down.

    Returns when nothing is left on it. It may be interrupted and called again. The other brokers get the replicas so
    that racks stay apart and the least loaded fill first. Cordon the broker first (`moldau logdirs cordon`): otherwise
    new topics may choose it until it is stopped.
    """

    from moldau_cli.operations.draining import drain_broker
    from moldau_cli.operations.moves import MoveOptions, run_moves

    options = MoveOptions(throttle=throttle, at_once_max=batch, stall_s=timeout, elects=False)

    async def work(admin: Admin) -> int:
        return await drain_broker(admin, broker, options, dry_run=dry_run)

    moved = run_moves(bootstrap_server, work)
    ending = "would move away" if dry_run else "moved away; it holds no replicas"
    output.answer({"broker": broker, "moved": moved, "dry_run": dry_run}, f"{counted(moved, 'partition')} {ending}")


@commands.command()
def unregister(broker: Broker, bootstrap_server: BootstrapServer = None) -> None:
    """Remove the registration of a broker for good; refused while it runs or holds replicas."""

    async def work(admin: Admin) -> None:
        from moldau_cli.operations.survey import known_broker, survey

        seen = await survey(admin)
        known_broker(seen, broker)
        held = seen.holders(broker)
        if held:
            topic, number = held[0]
            raise CommandError(
                f"broker {broker} holds {len(held)} replicas, first {topic}-{number}; moldau brokers drain {broker}"
            )
        if seen.brokers[broker].is_live:
            raise CommandError(f"broker {broker} runs, and would register again; stop it first")
        await admin.unregister_broker(broker)

    with_admin(bootstrap_server, work)
    output.answer({"broker": broker}, f"broker {broker} is not registered any more")
