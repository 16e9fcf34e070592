"""``moldau features``: the finalised feature levels of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.options import BootstrapServer
from moldau_cli.endpoints import BootstrapController, with_admin_of
from moldau_cli.errors import UsageError
from moldau_cli.words import is_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau import Admin
    from moldau.admin import FeatureDescription

commands = typer.Typer(help="Describe and change feature levels.", rich_markup_mode=None)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only ask the controller whether it would do so.")]
_FEATURE = typer.Option("--feature", metavar="NAME=LEVEL", help="Feature and its new level.")


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
    feature: Annotated[list[str] | None, _FEATURE] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Raise each feature to the highest level that the node supports.")
    ] = False,
    dry_run: DryRun = False,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Raise levels, either all or none; all brokers and voters must support them."""
    if every == bool(feature):
        raise UsageError("name levels with --feature NAME=LEVEL, or raise all with --all")
    levels = parse_levels(feature or [])

    async def work(admin: Admin) -> dict[str, int]:
        wanted = levels or {
            each.name: each.level_max for each in await admin.describe_features() if each.level < each.level_max
        }
        if wanted:
            await admin.update_features(wanted, validate_only=dry_run)
        return wanted

    _answer(with_admin_of(bootstrap_server, bootstrap_controller, work), dry_run=dry_run)


@commands.command()
def downgrade(
    feature: Annotated[list[str], _FEATURE],
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Allow it even if recorded metadata is lost.")] = False,
    dry_run: DryRun = False,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Lower levels, either all or none; the controller refuses if recorded metadata needs the higher level."""
    levels = parse_levels(feature)

    async def work(admin: Admin) -> None:
        await admin.update_features(levels, allow_downgrade=True, unsafe=unsafe, validate_only=dry_run)

    with_admin_of(bootstrap_server, bootstrap_controller, work)
    _answer(levels, dry_run=dry_run)


def _answer(levels: Mapping[str, int], *, dry_run: bool) -> None:
    verb = "would be" if dry_run else "is"
    said = ", ".join(f"{name} {verb} at level {level}" for name, level in sorted(levels.items()))
    document: dict[str, output.Json] = {"features": dict(levels)}
    output.answer(document | {"dry_run": True} if dry_run else document, said or "no feature has a higher level")
