"""Goal: a user of Kafka's tools reads how to write an option here. Method: wrong options, and the tables themselves."""

import re

import pytest

from moldau_cli.application import application
from moldau_cli.hints.core import kafka_options
from moldau_cli.main import main

EVERYWHERE = {"--json", "--command-config", "--profile"}


def command_of(path):
    """Returns a command, or None if there is none."""
    found = application
    for word in path.split():
        found = getattr(found, "commands", {}).get(word)
    return found


def options_of(command):
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | EVERYWHERE


@pytest.mark.parametrize(
    ("words", "here"),
    [
        ("consume t --max-messages 3", "--count N"),
        ("consume --topic t", "an argument: moldau consume [TOPIC...]"),
        ("consume t --property print.key=true", "--show-key (print.key), --key-delimiter (key.separator), "),
        ("consume t --consumer.config f", "--command-config FILE"),
        ("consume t --command-property group.id=g", "-X KEY=VALUE, with Kafka's keys"),
        ("produce t --broker-list h:1", "--bootstrap-server"),
        ("produce t --reader-property parse.key=true", "--key-separator (parse.key, key.separator), "),
        ("topics --list", "moldau topics list"),
        ("topics list --command-property a=b", "--command-config FILE, with Kafka's keys"),
        ("topics alter t --config a=b", "moldau configs alter --entity-name TOPIC --add-config KEY=VALUE"),
        ("configs describe --broker 1", "--entity-type brokers --entity-name ID"),
        ("groups --reset-offsets --group g --to-earliest", "moldau groups reset"),
        ("groups reset g --to-earliest", "--to earliest"),
        ("groups reset g --to-datetime 2026-01-01 --execute", "the default: leave it out, or give --dry-run to change"),
        ("share-groups --reset-offsets", "moldau share-groups offsets reset"),
        ("share-groups --delete-offsets", "moldau share-groups offsets delete"),
        ("reassign execute --execute f", "the command itself: leave it out"),
        ("log dump --files f", "an argument: moldau log dump FILES"),
    ],
)
def test_an_option_of_kafka_is_named_in_its_form_here(words, here, capsys):
    """It was "No such option", at most with options that sound alike."""
    assert main(words.split()) == 2
    assert f"; here it is {here}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("consume t --key-formt x", "No such option: --key-formt (Possible options: --format, --key-format"),
        ("topics --bogus", "No such option: --bogus; see: moldau topics --help"),
        ("groups list --state", "Option '--state' requires an argument; see: moldau groups list --help"),
        (
            "configs describe --entity-type users",
            "'--entity-type': the configuration of users is that of moldau quotas or moldau users; see: moldau configs",
        ),
        ("configs describe --entity-type topic", "'topic' is not one of 'topics', 'brokers', "),
    ],
)
def test_other_mistakes_keep_their_text(words, text, capsys):
    """Help for an option without its value was that of the program."""
    assert main(words.split()) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("group", "word", "here"),
    [(group, word, here) for group, words in kafka_options._COMMANDS.items() for word, here in words.items()],
)
def test_a_command_of_a_tool_of_kafka_is_named(group, word, here, capsys):
    """``moldau quorum describe`` had no answer but that there is no such command."""
    assert command_of(here.removesuffix(" --json")) is not None
    assert main([group, word, "--status"]) == 2
    assert capsys.readouterr().err == (
        f"moldau: No such command '{word}'; here it is moldau {here}; see: moldau {group} --help\n"
    )


@pytest.mark.parametrize("path", sorted(kafka_options._BY_COMMAND))
def test_each_form_that_is_named_exists(path):
    own = options_of(command_of(path))
    for option, here in kafka_options._BY_COMMAND[path].items():
        assert option not in own, "this row is never read"
        named = re.search(r"moldau ((?:[a-z]+ ?)+)", here)
        other = None if named is None else command_of(named[1].split(" or ")[0])
        assert named is None or other is not None, here
        known = own if other is None or hasattr(other, "commands") else options_of(other)
        assert set(re.findall(r"(?<![\w-])--[a-z-]+", here)) <= known, (option, here)


@pytest.mark.parametrize("group", ["topics", "groups", "acls", "configs", "reassign", "txns", "features", "quorum"])
def test_each_action_of_a_group_is_found(group):
    for name in command_of(group).commands:
        found = kafka_options.option_here(group, f"--{name}", subcommands=command_of(group).commands)
        assert found == f"moldau {group} {name}"
