"""The subcommands of ``moldau topics``, in the order of its help."""

from __future__ import annotations

import typer

from moldau_cli.commands.topics import changing, listing, records

commands = typer.Typer(help="Create, list, describe, alter and delete topics.", rich_markup_mode=None)
commands.command("create")(changing.create)
commands.command("list")(listing.list_topics)
commands.command("describe")(listing.describe)
commands.command("alter")(changing.alter)
commands.command("delete")(changing.delete)
commands.command("delete-records")(records.delete_records)
