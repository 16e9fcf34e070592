"""``moldau node``: prepares a node on its machine."""

from __future__ import annotations

import enum
import os
import platform
import shlex
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau_cli import output
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.words import parse_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.config import Config
    from moldau_cli.nodes.format import Formatted, Place

commands = typer.Typer(help="Prepare a node: its file, its directories, its machine.", rich_markup_mode=None)

OWN_MODE: Final = 0o600
"""Only the owner may read and write a file."""
_ID_ADVICE: Final = "moldau node cluster-id draws one, once for all nodes of a new cluster"

File = Annotated[Path, typer.Argument(metavar="FILE", help="Configuration file of the node.")]


def _checked(text: str | None) -> str | None:
    """Refuses an empty value, such as that of a variable that is not set."""
    if text is not None and not text.strip():
        raise typer.BadParameter("it is empty")
    return text


filled = partial(typer.Option, callback=_checked)
"""An option whose value must not be empty."""


class Role(enum.StrEnum):
    """The roles of a new node."""

    BROKER = "broker"
    CONTROLLER = "controller"
    BOTH = "both"


@commands.command()
def init(
    file: File,
    role: Annotated[list[Role], typer.Option(help="What the node is.")],
    node_id: Annotated[int, typer.Option("--node-id", min=0, help="Number of the node, unique in the cluster.")],
    voters: Annotated[str, typer.Option(metavar="ID@HOST:PORT,...", help="All controllers, the same on each node.")],
    host: Annotated[
        str | None, filled(help="Name under which clients reach the broker; default: this machine's.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the broker.")] = 9092,
    directories: Annotated[
        list[str] | None,
        typer.Option("--dir", help="Directory of the data, once for each disk. Default: /var/lib/moldau."),
    ] = None,
    cluster_id: Annotated[
        str | None, filled("--cluster-id", help="Id of the cluster; default: that of the voters, if one answers.")
    ] = None,
    rack: Annotated[str | None, filled(help="Rack of the broker.")] = None,
    metrics: Annotated[
        str | None, filled(metavar="HOST:PORT", help="Address of metrics and health; default: not served.")
    ] = None,
    keystore: Annotated[
        str | None, filled(metavar="FILE", help="TLS on all listeners: private key and certificate (PEM, or PKCS12).")
    ] = None,
    truststore: Annotated[
        str | None, filled(metavar="FILE", help="Certificates of the authorities of the other nodes (PEM, or PKCS12).")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Further key of the file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented configuration file, and check this machine against it.

    The voters are asked for the cluster id over TLS if the node has a keystore, and with its login, if --set gives one.
    """
    from dataclasses import replace

    from moldau_cli.nodes.file import NewNode, configuration_text, parse_voters

    if file.name.endswith(".toml"):  # such a file is read as TOML
        raise UsageError(f"{file}: init writes Java properties; name the file {file.stem}.properties")
    if file.exists() and not force:
        raise UsageError(f"{file} exists; --force replaces it")
    if len(role) > 1:
        raise UsageError(f"--role is given twice; --role {Role.BOTH} makes a node that is broker and controller")
    all_voters = parse_voters(voters)
    roles = ("broker", "controller") if role[0] is Role.BOTH else (role[0].value,)
    node = NewNode(
        roles=roles,
        node_id=node_id,
        voters=all_voters,
        host=host or platform.node(),
        port=port,
        directories=tuple(map(_directory, directories or ["/var/lib/moldau"])),
        cluster_id=cluster_id or "",
        rack=rack or "",
        metrics=metrics or "",
        keystore=str(Path(keystore).absolute()) if keystore else "",
        truststore=str(Path(truststore).absolute()) if truststore else "",
        more=parse_settings(settings or [], "--set", may_repeat=False),
    )
    if not cluster_id:
        node = replace(node, cluster_id=_cluster_id_of(_parse(configuration_text(node), file, {})))
    text = configuration_text(node)
    config = _parse(text, file, {})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, text, is_secret=_has_secrets(node.more, config))
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
    if not output.wants_json():
        identity = "" if node.cluster_id else f" --cluster-id ID ({_ID_ADVICE})"
        command = f"moldau node format {shlex.quote(str(file))}{identity}"
        output.note(f"written: {file}; then, as the user that runs the node: {command}")
    _report(config)


def _directory(given: str) -> str:
    """Returns the absolute path of a directory, as ``log.dirs`` can hold it.

    Raises:
        UsageError: it cannot: that key separates directories by commas.
    """
    if not given or given != given.strip() or "," in given:
        raise UsageError(f"--dir {given!r}: expected one directory, without a comma, and without a blank at its ends")
    return str(Path(given).absolute())


@commands.command()
def check(file: File) -> None:
    """Check this machine against a configuration.

    Looks at ports, directories, certificates, file limits, the object store, the other voters and clocks.
    """
    _report(_read(file))


@commands.command("format")
def format_directories(
    file: File,
    cluster_id: Annotated[
        str,
        typer.Option(
            "--cluster-id", help="Id of the cluster; default: cluster.id of the file, else that of a directory."
        ),
    ] = "",
) -> None:
    """Give the directories of a node its identity; directories of other nodes or clusters are refused."""
    from moldau.runtime.config import process_configs
    from moldau.runtime.ports.real import real_environment
    from moldau_cli.nodes.checks import own_cluster
    from moldau_cli.nodes.format import format_node, places_of_others

    config = _read(file)
    configured = config.get_str_or_none("cluster.id") or ""
    if cluster_id and configured and cluster_id != configured:
        raise UsageError(f"--cluster-id {cluster_id} contradicts cluster.id={configured} in {file}")
    known = (own_cluster(one)[0] for one in process_configs(config))  # a node gets another directory
    chosen = cluster_id or configured or next(filter(None, known), "")
    if not chosen:
        raise UsageError(f"no cluster id: set cluster.id in {file}, or give --cluster-id ({_ID_ADVICE})")
    environment = real_environment()
    places = places_of_others(config)
    done = format_node(environment.disk, config, chosen, environment.random)
    output.answer_rows(
        "directories",
        ["directory", "state", "cluster_id"],
        [{"directory": one.path, "state": _state(one), "cluster_id": chosen} for one in done],
    )
    _warn_of_owner([places[one.path] for one in done if one.is_new and one.path in places])


def _state(one: Formatted) -> str:
    if one.is_new:
        return "formatted"
    return "cluster id added" if one.is_completed else "unchanged"


def _warn_of_owner(places: list[Place]) -> None:
    """Says that root owns the new files of a node, which the user of their place may run."""
    import pwd

    if not places:
        return
    owner = places[0].owner
    try:
        user = pwd.getpwuid(owner).pw_name
    except KeyError:
        user = str(owner)
    change = ["chown", "-R", user, *dict.fromkeys(place.path for place in places if place.owner == owner)]
    output.note(
        f"moldau: root owns the new files in a place of user {user}; if {user} runs the node: {shlex.join(change)}"
    )


@commands.command("cluster-id")
def draw() -> None:
    """Draw an id for a new cluster."""
    import uuid

    from moldau_quorum.node.active_controller import draw_cluster_id

    drawn = draw_cluster_id(uuid.uuid4())
    while drawn.startswith("-"):  # on a command line it would look like an option
        drawn = draw_cluster_id(uuid.uuid4())
    output.answer({"cluster_id": drawn}, drawn)


def _has_secrets(given: Mapping[str, str], config: Config) -> bool:
    """Returns whether a value is a secret as text; a reference to a secret is none."""
    from moldau.runtime.config.providers import files_of_secrets

    here = "this file"
    secrets = [key for key in given if config.schema.key(key).is_sensitive]
    return here in files_of_secrets(given, here, secrets)


def _write(file: Path, text: str, *, is_secret: bool) -> None:
    """Writes a configuration file. One that ``is_secret`` is closed to other users first, and a note says so.

    An existing file that they cannot read keeps its mode, such as 640 for the group of the user who runs the node.

    Raises:
        OSError: it cannot be written, or not be closed to others.
    """
    mode = file.stat().st_mode if file.exists() else None
    closes = is_secret and (mode is None or (stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)))
    if closes and mode is not None:
        file.chmod(OWN_MODE)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWN_MODE if is_secret else 0o666)
    with open(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
    if closes:
        change = f"if another user runs the node: chown USER {shlex.quote(str(file))}"
        output.note(f"moldau: {file} holds a secret, so only its owner may read it; {change}")


def _read(file: Path) -> Config:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text: {error}") from error
    return _parse(text, file, dict(os.environ))


def _parse(text: str, file: Path, environ: dict[str, str]) -> Config:
    from moldau.runtime.config import ConfigError, parse_server_config
    from moldau_cli.nodes.paths import unusable_directory

    try:
        config = parse_server_config(text, str(file), environ)
    except ConfigError as error:
        raise UsageError(f"{file}: {'; '.join(error.problems)}") from error
    if unusable := unusable_directory(config):
        raise UsageError(f"{file}: {unusable}")
    return config


def _cluster_id_of(config: Config) -> str:
    """Asks the other voters for their cluster id, as the node itself will connect to them; empty if none answers.

    Raises:
        UsageError: they belong to different clusters, or the files of the configuration cannot be used.
    """
    import trio

    from moldau.runtime.config import ConfigError, quorum_voters
    from moldau.runtime.ports.real import real_environment
    from moldau.runtime.tls.outgoing import controllers_environment
    from moldau_cli.nodes.checks import ask_voters

    try:
        outgoing = controllers_environment(real_environment(), config)
    except ConfigError as error:
        raise UsageError("; ".join(error.problems)) from error
    views = trio.run(ask_voters, outgoing, quorum_voters(config), config.get_int("node.id"))
    known = {view.cluster_id for view in views.values() if not isinstance(view, str) and view.cluster_id}
    if len(known) > 1:
        raise UsageError(f"--voters belong to different clusters: {', '.join(sorted(known))}")
    return known.pop() if known else ""


def _report(config: Config) -> None:
    """Checks the machine and writes the findings.

    Raises:
        CommandError: a finding is a problem.
    """
    import trio

    from moldau.runtime.config import ConfigError
    from moldau.runtime.ports.real import raise_open_files_limit, real_environment
    from moldau_cli.nodes.checks import PROBLEM, check_node

    try:
        found = trio.run(check_node, real_environment(), config, raise_open_files_limit())
    except ConfigError as error:  # of files that the configuration names, such as certificates
        raise UsageError("; ".join(error.problems)) from error
    output.answer_rows(
        "checks",
        ["check", "subject", "state", "detail"],
        [{"check": one.check, "subject": one.subject, "state": one.state, "detail": one.detail} for one in found],
    )
    problems = [one for one in found if one.state == PROBLEM]
    if problems:
        raise CommandError(f"{len(problems)} of {len(found)} checks found a problem, first: {problems[0].subject}")
