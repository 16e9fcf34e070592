"""``moldau features``: the finalised feature levels of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client import BootstrapServer
from moldau_cli.endpoints import BootstrapController, with_admin_of
from moldau_cli.errors import UsageError
from moldau_cli.words import is_number

if TYPE_CHECKING:
    from moldau import Admin
    from moldau.admin import FeatureDescription

commands = typer.Typer(help="Describe and change feature levels.", rich_markup_mode=None)

Levels = Annotated[list[str], typer.Option("--feature", metavar="NAME=LEVEL", help="Feature and its new level.")]


def parse_levels(words: list[str]) -> dict[str, int]:
    """Parses ``NAME=LEVEL`` words.

    Raises:
        UsageError: a word has another form.
    """
    levels = {}
    for word in words:
        name, _, level = word.partition("=")
        if not name or not is_number(level):
            raise UsageError(f"expected NAME=LEVEL such as metadata.version=1, not {word!r}")
        levels[name] = int(level)
    return levels


@commands.command()
def describe(bootstrap_server: BootstrapServer = None, bootstrap_controller: BootstrapController = None) -> None:
    """List features with their supported levels and their current level."""

    async def work(admin: Admin) -> list[FeatureDescription]:
        return await admin.describe_features()

    output.answer_rows(
        "features",
        ["feature", "level", "level_min", "level_max"],
        [
            {"feature": each.name, "level": each.level, "level_min": each.level_min, "level_max": each.level_max}
            for each in with_admin_of(bootstrap_server, bootstrap_controller, work)
        ],
    )


@commands.command()
def upgrade(
    feature: Levels,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Raise levels, either all or none."""
    _update(feature, bootstrap_server, bootstrap_controller)


@commands.command()
def downgrade(
    feature: Levels,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Allow it even if recorded metadata is lost.")] = False,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Lower levels, either all or none; the controller refuses if recorded metadata needs the higher level."""
    _update(feature, bootstrap_server, bootstrap_controller, allow_downgrade=True, unsafe=unsafe)


def _update(
    words: list[str],
    bootstrap_server: str | None,
    bootstrap_controller: str | None,
    *,
    allow_downgrade: bool = False,
    unsafe: bool = False,
) -> None:
    levels = parse_levels(words)

    async def work(admin: Admin) -> None:
        await admin.update_features(levels, allow_downgrade=allow_downgrade, unsafe=unsafe)

    with_admin_of(bootstrap_server, bootstrap_controller, work)
    output.answer(
        {"features": dict(levels)}, ", ".join(f"{name} is at level {level}" for name, level in sorted(levels.items()))
    )
