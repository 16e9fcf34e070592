"""The typer application with all commands.

A command's module is imported when the command is called, or when its own help is asked for. ``moldau --help`` shows
the summaries below, so it loads no command. At import, a command module loads only the standard library, typer and a
few light modules.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from moldau_cli.help import plain_help

if TYPE_CHECKING:
    # The command-line library's own classes are not exported by typer.
    Command = Any
    Context = Any
    HelpFormatter = Any


class Entry(NamedTuple):
    """Where a command stands, and what the list of commands says about it."""

    module: str
    """Name of the module below ``moldau_cli.commands``."""
    attribute: str
    """A function, or a typer application of subcommands."""
    summary: str
    """First sentence of the command's help, or none for a group without help."""


COMMANDS: Final[dict[str, Entry]] = {
    "demo": Entry(
        "demo",
        "demo",
        "Send real records through a cluster whose leader is killed, to Spark and Parquet, and prove exactly once.",
    ),
    "cluster": Entry("cluster", "commands", "Start, inspect and disturb a local cluster."),
    "console": Entry(
        "console",
        "console",
        "Serve a web console: health, topics, groups, messages; fault buttons for a local cluster.",
    ),
    "server": Entry(
        "basics", "server_help", "Run one node from a properties or TOML file (roles broker, controller, or both)."
    ),
    "node": Entry("node", "commands", "Prepare a node: its file, its directories, its machine."),
    "topics": Entry("topics.commands", "commands", "Create, list, describe, alter and delete topics."),
    "produce": Entry(
        "produce",
        "produce",
        "Send each line of stdin (or FILE) as a record, and report when all in-sync replicas have them.",
    ),
    "consume": Entry(
        "consume", "consume", "Write the records of a topic to stdout, one a line (one JSON object a line with --json)."
    ),
    "offsets": Entry(
        "watching.offsets",
        "offsets",
        "Show the offsets of partitions: earliest, latest, of the greatest timestamp, or at a time.",
    ),
    "groups": Entry("groups.consumer", "commands", "List, describe, reset and delete consumer groups."),
    "top": Entry("watching.top", "top", "Show rates, lag and problems of a cluster, and refresh them."),
    "share-groups": Entry("groups.share", "commands", "List, describe and delete share groups, and their offsets."),
    "streams-groups": Entry("groups.streams", "commands", "List, describe, reset and delete streams groups."),
    "configs": Entry(
        "administration.configs",
        "commands",
        "Describe and alter the configuration of topics, brokers, groups and others.",
    ),
    "txns": Entry("txns", "commands", "List, describe, terminate and abort transactions."),
    "reassign": Entry("administration.replicas", "reassign", "Move replicas between brokers."),
    "elect": Entry("administration.replicas", "elect", "Move leadership back to the preferred replicas."),
    "balance": Entry("operations.balance", "commands", "Even out replicas, bytes, racks and leaders over the brokers."),
    "brokers": Entry("operations.brokers", "commands", "List, drain and unregister brokers."),
    "logdirs": Entry(
        "administration.logdirs",
        "commands",
        "Inspect and cordon log directories, and move replicas between those of a broker.",
    ),
    "quorum": Entry(
        "administration.quorum", "commands", "Inspect the metadata quorum, and change its voters and its leader."
    ),
    "features": Entry("administration.features", "commands", "Describe and change feature levels."),
    "users": Entry("administration.users", "commands", "List, add, alter and remove users (SCRAM credentials)."),
    "tokens": Entry("administration.tokens", "commands", "Create, renew, expire and describe delegation tokens."),
    "acls": Entry("administration.acls", "commands", "List, add and remove ACLs, the rights of principals."),
    "quotas": Entry("administration.quotas", "commands", "Show, set and delete client quotas."),
    "mirror": Entry("mirror", "commands", "Mirror topics of other clusters into one, and show how far it is."),
    "pipeline": Entry("pipeline", "commands", "Run pipeline jobs on Spark: topics to tables, and back."),
    "sim": Entry("sim.runs", "commands", "Run clusters in the deterministic simulation."),
    "chaos": Entry("chaos", "commands", "Break a cluster under load and judge what its clients saw."),
    "log": Entry("log", "commands", "Inspect log files."),
    "profile": Entry("setup.profile", "commands", "Keep the addresses and settings of clusters under names."),
    "completion": Entry(
        "setup.completion",
        "completion",
        "Print the script that makes a shell complete commands, options, topics, groups and profiles.",
    ),
    "version": Entry("basics", "version", "Print Moldau's version."),
}
"""All commands, in the order of the list."""


MEANT: Final[dict[str, str]] = {
    "transactions": "txns",
    "consumer-groups": "groups",
    "configure": "configs",
    "config": "configs",
    "metadata-quorum": "quorum",
    "cluster-metadata": "quorum",
    "reassign-partitions": "reassign",
    "leader-election": "elect",
    "log-dirs": "logdirs",
    "delegation-tokens": "tokens",
    "get-offsets": "offsets",
    "delete-records": "topics delete-records",
    "console-producer": "produce",
    "console-consumer": "consume",
    "dump-log": "log dump",
    "mirror-maker": "mirror",
    "start": "cluster start",
    "stop": "cluster stop",
    "status": "cluster status",
    "partitions": "topics describe",
    "rebalance": "balance",
    "shell": "console",
    "ui": "console",
}
"""Words of Kafka's tools, and other words that people try, with the command that does this."""


class Commands(MutableMapping[str, "Command"]):
    """The commands by name; each is built when it is looked up first."""

    def __init__(self) -> None:
        self._built: dict[str, Command] = {}

    def __getitem__(self, name: str) -> Command:
        """Returns a command."""
        if name not in self._built:
            entry = COMMANDS[name]
            found = getattr(importlib.import_module(f"moldau_cli.commands.{entry.module}"), entry.attribute)
            if isinstance(found, typer.Typer):
                self._built[name] = get_group(found)  # ``get_command`` would add options that install completion
            else:
                single = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=SETTINGS)
                single.command(name)(found)
                self._built[name] = get_command(single)
            self._built[name].name = name
            plain_help(self._built[name])
        return self._built[name]

    def __setitem__(self, name: str, command: Command) -> None:
        """Adds a command."""
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        """Removes a command that was added."""
        del self._built[name]

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names."""
        return iter(COMMANDS)

    def __len__(self) -> int:
        """Counts the commands."""
        return len(COMMANDS)


class Application(TyperGroup):
    """The group ``moldau``, whose help needs no command's module."""

    _is_listing = False

    def list_commands(self, ctx: Context) -> list[str]:
        """Returns the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Returns a command; while names are completed, a stand-in with its summary, so that no module is loaded."""
        if self._is_listing:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name].summary)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """Finds the command; for a word of another tool, the error names the command that does the same."""
        word = args[0].removeprefix("kafka-").removesuffix(".sh")
        meant = MEANT.get(word, word)
        if meant != args[0] and (word in MEANT or word in COMMANDS) and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Context) -> object:
        """Runs the command; an interrupt becomes ``typer.Abort``, which every release of typer hands on.

        Some releases end with code 130 instead, so that no line and no JSON says what happened.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error

    def shell_complete(self, ctx: Context, incomplete: str) -> list[Any]:
        """Returns the names of commands that begin like a word."""
        self._is_listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._is_listing = False

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Writes the list of commands with their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


SETTINGS: Final = {"help_option_names": ["-h", "--help"]}

application: Final = Application(
    name="moldau",
    commands=Commands(),  # type: ignore[arg-type]  # typer needs a mapping, and says a dictionary
    help=(
        "A Kafka-compatible replicated log. Add --json anywhere for machine-readable output, and --command-config FILE "
        "for client configuration keys such as security.protocol. --profile NAME uses a cluster of moldau profile."
    ),
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings=SETTINGS,
)
