"""``moldau logdirs``: log directories of brokers, and moves between those of one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.answers import refuse_failures
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.completion import names
from moldau_cli.errors import UsageError
from moldau_cli.words import a_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau import Admin
    from moldau.admin import LogDirDescription
    from moldau.protocol.errors import KafkaError

commands = typer.Typer(
    help="Inspect and cordon log directories, and move replicas between those of a broker.", rich_markup_mode=None
)

Broker = Annotated[int, typer.Argument(metavar="BROKER", min=0, help="Id of a broker.")]
Paths = Annotated[
    list[str] | None, typer.Argument(metavar="PATH...", help="Its log.dirs, as `describe` shows them; default: all.")
]
Throttle = Annotated[
    int | None, typer.Option(min=1, help="Bytes per second that the broker may copy for such moves. Default: no limit.")
]
Stall = Annotated[
    float, typer.Option(min=1, callback=a_number, help="Give up when nothing was copied for so many seconds.")
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="Only replicas of these topics.", autocompletion=names.topics)
]


@commands.command()
def describe(
    broker: Annotated[list[int] | None, typer.Option(help="Only these brokers; default: all in service.")] = None,
    topic: Topics = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="One line for each partition.")] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show the log directories of brokers, with sizes."""

    async def work(admin: Admin) -> tuple[dict[int, list[LogDirDescription]], Mapping[str, KafkaError]]:
        from moldau_cli.operations.partial import ask_log_dirs

        chosen: list[tuple[str, int]] | None = None
        if topic:
            described = await admin.describe_topics(topic)  # fails for a name that is misspelt
            chosen = [(name, part.partition) for name, one in described.items() for part in one.partitions]
        known = [one.node_id for one in (await admin.describe_cluster()).brokers]
        return await ask_log_dirs(admin, broker or known, partitions=chosen)

    described, failures = with_admin(bootstrap_server, work)
    found = [(node, one) for node, directories in sorted(described.items()) for one in directories]
    if partitions:
        output.answer_rows(
            "partitions",
            ["broker", "topic", "partition", "size_bytes", "offset_lag", "path"],
            [
                {
                    "broker": node,
                    "topic": part.topic_partition.topic,
                    "partition": part.topic_partition.partition,
                    "size_bytes": part.size_bytes,
                    "offset_lag": part.offset_lag,
                    "path": one.path,
                    "future": part.is_future,
                }
                for node, one in found
                for part in sorted(one.partitions, key=lambda each: each.topic_partition)
            ],
        )
        refuse_failures("log directories are missing", failures)
        return
    output.answer_rows(
        "log_dirs",
        ["broker", "path", "state", "cordoned", "partitions", "size_bytes", "usable_bytes"],
        [
            {
                "broker": node,
                "path": one.path,
                "state": "online" if one.error == 0 else one.error.name.lower(),
                "cordoned": one.is_cordoned,
                "partitions": len(one.partitions),
                "size_bytes": sum(part.size_bytes for part in one.partitions),
                "usable_bytes": one.usable_bytes if one.usable_bytes >= 0 else None,
            }
            for node, one in found
        ],
    )
    refuse_failures("log directories are missing", failures)


@commands.command()
def move(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=names.topics)],
    broker: Annotated[int, typer.Option(min=0, help="The broker whose replicas move.")],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="One of its log.dirs, as `describe` shows it.")],
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only these partitions; default: all on the broker.")
    ] = None,
    throttle: Throttle = None,
    timeout: Stall = 120,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Move replicas of a topic to another log directory of their broker.

    Returns when the replicas are there and the throttle is lifted. If it is interrupted, the moves and the throttle
    go on; the same command ends both.
    """
    from moldau_cli.operations.directories import move_to_directories

    async def work(admin: Admin) -> list[tuple[str, int, int]]:
        described = (await admin.describe_topics([topic]))[topic]
        held = [(topic, part.partition, broker) for part in described.partitions if broker in part.replicas]
        wanted = [replica for replica in held if not partition or replica[1] in partition]
        absent = sorted(set(partition or ()) - {number for _, number, _ in held})
        if absent:
            raise UsageError(f"broker {broker} has no replica of {topic}-{absent[0]}")
        if not wanted:
            raise UsageError(f"broker {broker} has no replica of {topic}")
        await move_to_directories(admin, dict.fromkeys(wanted, to), throttle=throttle, stall_s=timeout)
        return wanted

    moved = with_admin(bootstrap_server, work)
    document: dict[str, output.Json] = {
        "topic": topic,
        "broker": broker,
        "path": to,
        "partitions": [number for _, number, _ in moved],
    }
    output.answer(document, f"{len(moved)} replicas of {topic} on broker {broker} are in {to}")


@commands.command()
def cordon(broker: Broker, paths: Paths = None, bootstrap_server: BootstrapServer = None) -> None:
    """Let log directories of a broker take no new replicas.

    Replicas that are there stay in service. A broker with all directories cordoned gets no new replicas at all; without
    PATH that includes directories that it gets later. Needs metadata.version 4.
    """
    from moldau.runtime.config import ALL_LOG_DIRS
    from moldau_cli.operations.directories import set_cordons

    async def work(admin: Admin) -> list[str]:
        return await set_cordons(admin, broker, add=paths or [ALL_LOG_DIRS])

    _answer_cordoned(broker, with_admin(bootstrap_server, work))


@commands.command()
def uncordon(broker: Broker, paths: Paths = None, bootstrap_server: BootstrapServer = None) -> None:
    """Let log directories of a broker take new replicas again."""
    from moldau.runtime.config import ALL_LOG_DIRS
    from moldau_cli.operations.directories import set_cordons

    async def work(admin: Admin) -> list[str]:
        return await set_cordons(admin, broker, remove=paths or [ALL_LOG_DIRS])

    _answer_cordoned(broker, with_admin(bootstrap_server, work))


def _answer_cordoned(broker: int, cordoned: list[str]) -> None:
    document: dict[str, output.Json] = {"broker": broker, "cordoned": list(cordoned)}
    output.answer(document, f"broker {broker} has cordoned {', '.join(cordoned) or 'no log directory'}")


@commands.command()
def drain(
    broker: Broker,
    path: Annotated[str, typer.Argument(metavar="PATH", help="One of its log.dirs, as `describe` shows it.")],
    throttle: Throttle = None,
    timeout: Stall = 120,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Cordon a log directory, and move all replicas in it to the other log directories of the broker.

    Returns when the directory is empty. If it is interrupted, the cordon, the moves and the throttle go on; the same
    command goes on with the rest. The broker's directories that hold the fewest bytes get the replicas.
    """
    from moldau_cli.operations.directories import drain_directory

    async def work(admin: Admin) -> int:
        return len(await drain_directory(admin, broker, path, throttle=throttle, stall_s=timeout))

    moved = with_admin(bootstrap_server, work)
    document: dict[str, output.Json] = {"broker": broker, "path": path, "moved": moved}
    output.answer(document, f"{moved} replicas moved; {path} of broker {broker} is cordoned and holds no replicas")
