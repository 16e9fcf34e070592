"""``moldau features``: levels of features that the whole cluster has agreed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client import BootstrapServer, with_admin
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from moldau import Admin
    from moldau.admin import FeatureDescription

commands = typer.Typer(help="Describe and change feature levels.", rich_markup_mode=None)

Levels = Annotated[list[str], typer.Option("--feature", metavar="NAME=LEVEL", help="Feature and its new level.")]


def parse_levels(words: list[str]) -> dict[str, int]:
    """``NAME=LEVEL`` words as a mapping; raises ``UsageError``."""
    levels = {}
    for word in words:
        name, _, level = word.partition("=")
        if not name or not level.isdigit():
            raise UsageError(f"expected NAME=LEVEL such as metadata.version=1, not {word!r}")
        levels[name] = int(level)
    return levels


@commands.command()
def describe(bootstrap_server: BootstrapServer = None) -> None:
    """List features with the levels that are supported and the one in force."""

    async def work(admin: Admin) -> list[FeatureDescription]:
        return await admin.describe_features()

    output.answer_rows(
        "features",
        ["feature", "level", "level_min", "level_max"],
        [
            {"feature": each.name, "level": each.level, "level_min": each.level_min, "level_max": each.level_max}
            for each in with_admin(bootstrap_server, work)
        ],
    )


@commands.command()
def upgrade(feature: Levels, bootstrap_server: BootstrapServer = None) -> None:
    """Raise levels, all or none."""
    _update(feature, bootstrap_server)


@commands.command()
def downgrade(
    feature: Levels,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Also where something recorded is forgotten by it.")] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Lower levels, all or none; refused where something recorded needs the higher one."""
    _update(feature, bootstrap_server, allow_downgrade=True, unsafe=unsafe)


def _update(
    words: list[str], bootstrap_server: str | None, *, allow_downgrade: bool = False, unsafe: bool = False
) -> None:
    levels = parse_levels(words)

    async def work(admin: Admin) -> None:
        await admin.update_features(levels, allow_downgrade=allow_downgrade, unsafe=unsafe)

    with_admin(bootstrap_server, work)
    output.answer(
        {"features": dict(levels)}, ", ".join(f"{name} is at level {level}" for name, level in sorted(levels.items()))
    )
