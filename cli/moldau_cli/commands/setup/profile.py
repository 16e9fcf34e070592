"""``moldau profile``: names for clusters, with their addresses and client settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.completion import names
from moldau_cli.errors import UsageError
from moldau_cli.words import address_of, parse_settings

if TYPE_CHECKING:
    from moldau_cli.profiles.core.document import Profile, Profiles

commands = typer.Typer(help="Keep the addresses and settings of clusters under names.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="Name of the profile.")]
HIDDEN = "[hidden]"


@commands.command()
def add(
    name: Name,
    bootstrap_server: Annotated[
        str, typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT,...", help="Brokers of the cluster.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-X", metavar="KEY=VALUE", help="Client configuration key; ${env:NAME} keeps a secret out."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a profile of this name.")] = False,
    use: Annotated[
        bool, typer.Option("--use", help="Use the profile from now on; the first one is used anyway.")
    ] = False,
) -> None:
    """Add a cluster. --command-config FILE becomes a part of the profile; it is read at each use.

    Relative paths in the settings begin at the present directory.
    """
    from moldau_cli.client.settings import command_config_file
    from moldau_cli.profiles.core.document import Profile, check_name
    from moldau_cli.profiles.core.places import with_absolute_paths
    from moldau_cli.profiles.store import load_profiles, save_profiles

    known = load_profiles()
    if name in known.by_name and not force:
        raise UsageError(f"there is a profile {name} already; --force replaces it")
    parsed = parse_settings(settings or [], "-X")
    _check(bootstrap_server, parsed)
    file = command_config_file()
    profile = Profile(
        name=check_name(name),
        bootstrap=bootstrap_server,
        command_config=str(Path(file).absolute()) if file else "",
        settings=with_absolute_paths(parsed, Path.cwd()),
    )
    changed = known.with_profile(profile)
    if use:
        changed = changed.using(name)
    save_profiles(changed)
    _answer(profile, changed, "added")


@commands.command("use")
def use_profile(
    name: Annotated[str | None, typer.Argument(help="Name of the profile.", autocompletion=names.profiles)] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no profile.")] = False,
) -> None:
    """Use a profile from now on, in commands that name no other cluster."""
    from moldau_cli.profiles.store import load_profiles, save_profiles

    if (name is None) != none:
        raise UsageError("give the name of a profile, or --none")
    known = load_profiles()
    if name is not None:
        known.get(name, "NAME")
    save_profiles(known.using(name or ""))
    output.answer({"current": name}, "no profile is used" if name is None else f"using {name}")


@commands.command("list")
def list_profiles() -> None:
    """List profiles; the one in use has a star."""
    from moldau_cli.profiles.store import load_profiles

    known = load_profiles()
    output.answer_rows(
        "profiles",
        ["profile", "used", "bootstrap", "command_config"],
        [
            {
                "profile": name,
                "used": (name == known.current) if output.wants_json() else "*" if name == known.current else "",
                "bootstrap": profile.bootstrap,
                "command_config": profile.command_config or None,
            }
            for name, profile in sorted(known.by_name.items())
        ],
    )


@commands.command()
def show(
    name: Annotated[
        str | None, typer.Argument(help="Default: the profile in use.", autocompletion=names.profiles)
    ] = None,
) -> None:
    """Show a profile, without its secrets."""
    from moldau_cli.profiles.store import load_profiles

    known = load_profiles()
    if name is None and not known.current:
        raise UsageError("no profile is used; give the name of one")
    _answer(known.get(name or known.current, "NAME"), known, "")


@commands.command()
def remove(name: Annotated[str, typer.Argument(help="Name of the profile.", autocompletion=names.profiles)]) -> None:
    """Remove a profile; its file of client configuration keys stays."""
    from moldau_cli.profiles.store import load_profiles, save_profiles

    known = load_profiles()
    known.get(name, "NAME")
    save_profiles(known.without(name))
    output.answer({"removed": name}, f"removed {name}")


def _check(bootstrap: str, settings: dict[str, str]) -> None:
    """Refuses addresses and keys that no client could use."""
    from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG, ConfigError

    for address in bootstrap.split(","):
        address_of(address.strip(), "--bootstrap-server: ")
    for key, value in settings.items():
        schema = next((one for one in (ADMIN_CONFIG, PRODUCER_CONFIG, CONSUMER_CONFIG) if key in one.keys), None)
        if schema is None:
            raise UsageError(f"-X: {ADMIN_CONFIG.unknown(key)}")
        if "${" in value:
            continue  # a reference is resolved, and its value checked, when the profile is used
        try:
            schema.parse_value(key, value)
        except ConfigError as error:
            raise UsageError(f"-X: {'; '.join(error.problems)}") from error


def _shown(key: str, value: str) -> str:
    """Returns a value, hidden if it is a secret and no reference to one."""
    from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG, ConfigType

    for schema in (ADMIN_CONFIG, PRODUCER_CONFIG, CONSUMER_CONFIG):
        if key in schema.keys and schema.key(key).type is not ConfigType.PASSWORD:
            return value
    is_reference = value.startswith("${") and value.endswith("}") and value.count("${") == 1
    return value if is_reference else HIDDEN


def _answer(profile: Profile, known: Profiles, done: str) -> None:
    settings: dict[str, output.Json] = {key: _shown(key, value) for key, value in sorted(profile.settings.items())}
    document: dict[str, output.Json] = {
        "profile": profile.name,
        "used": profile.name == known.current,
        "bootstrap": profile.bootstrap,
        "command_config": profile.command_config or None,
        "settings": settings,
    }
    head = f"{done} {profile.name}".strip()
    lines = [f"{head}{', which is used' if profile.name == known.current else ''}", f"bootstrap: {profile.bootstrap}"]
    if profile.command_config:
        lines.append(f"command-config: {profile.command_config}")
    lines += [f"{key}: {value}" for key, value in settings.items()]
    output.answer(document, "\n".join(lines))
