"""Goal: the tables of options name what Moldau has, and all of it. Method: tables are compared with the commands."""

import re
from pathlib import Path

import pytest

from moldau_cli.application import application

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "command-line.md"
SECTION = re.compile(r"^### `moldau (\w+)`\n(.*?)(?=^###? |\Z)", re.MULTILINE | re.DOTALL)
WHOLE = {"consume", "produce", "offsets"}
"""Commands whose tables name every option."""


SUBCOMMANDS = ("topics", "groups", "txns", "configs", "reassign", "quorum", "acls", "logdirs")
"""Commands whose tables name every subcommand."""


def sections():
    return dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))


def named(text):
    """Yields (subcommand, option) of the first cell of each row; the option is empty where only a command is named."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows
    for row in rows:
        for words in re.findall(r"`([^`]+)`", row.split("|")[1]):
            first, *rest = words.split()
            if first.startswith("-"):
                yield "", first
            elif re.fullmatch(r"[a-z-]+", first):
                yield first, rest[0] if rest else ""


def options_of(command):
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_the_page_has_the_tables():
    assert set(sections()) == {*WHOLE, *SUBCOMMANDS, "elect"}


@pytest.mark.parametrize("name", sections())
def test_every_named_option_exists(name):
    command = application.commands[name]
    for subcommand, option in named(sections()[name]):
        found = command.commands[subcommand] if subcommand else command
        assert not option or option in options_of(found), f"{name} {subcommand} {option}"


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_every_option_of_records_is_named(name):
    known = {option for option in options_of(application.commands[name]) if option.startswith("-")}
    assert known - {"-h", "--help"} == {option for _, option in named(sections()[name])}


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_is_named(name):
    assert {subcommand for subcommand, _ in named(sections()[name])} == set(application.commands[name].commands)
