"""Goal: ``moldau server`` takes its words in any order, and refuses wrong ones in one line.

Method: every order of every choice of options, and what each option refuses; nothing is started.
"""

from __future__ import annotations

import re
from itertools import combinations, permutations

import pytest

from moldau_cli.errors import UsageError
from moldau_cli.nodes.server import serve_command
from moldau_cli.nodes.server_words import HELP, LOG_FORMATS, LOG_LEVELS, USAGE, parse_words

FILE = ("node.properties",)
OPTIONS = {
    ("--with-parent",): {"with_parent": True},
    ("--node", "7"): {"node_id": 7},
    ("--log-level", "Debug"): {"level": "debug"},
    ("--log-format", "JSON"): {"log_format": "json"},
    ("--json",): {},
}
USUAL = {"path": FILE[0], "level": "info", "log_format": "", "with_parent": False, "node_id": None}


@pytest.mark.parametrize("count", range(len(OPTIONS) + 1))
def test_options_stand_in_any_order(count: int) -> None:
    for chosen in combinations(OPTIONS, count):
        wanted = dict(USUAL)
        for option in chosen:
            wanted |= OPTIONS[option]
        for words in permutations((FILE, *chosen)):
            assert parse_words([word for option in words for word in option])._asdict() == wanted


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "configuration file missing"),
        ("--with-parent", "configuration file missing"),
        ("a b", "one configuration file expected, got a and b"),
        ("a --wat", "unknown option --wat"),
        ("--wat a", "unknown option --wat"),
        ("a -v", "unknown option -v"),
        ("a --node", "--node must be the number of a node, not ''"),
        ("a --node -1", "--node must be the number of a node, not '-1'"),
        ("a --node x", "--node must be the number of a node, not 'x'"),
        ("a --log-level", "--log-level must be one of debug, info, warning, error, not ''"),
        ("a --log-level loud", "--log-level must be one of debug, info, warning, error, not 'loud'"),
        ("a --log-format", "--log-format must be one of text, json, not ''"),
        ("--log-format xml a", "--log-format must be one of text, json, not 'xml'"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(text)}"):
        parse_words(words.split())
    for more in ([], ["--check"]):
        assert serve_command([*words.split(), *more]) == 2
        assert capsys.readouterr() == ("", f"moldau: {text}; {USAGE}\n")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_comes_before_everything_else(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([option], ["no-such-file", "--wat", option], [option, "--check"]):
        assert serve_command(words) == 0
        assert capsys.readouterr() == (HELP, "")
    assert all(level in HELP for level in (*LOG_LEVELS, *LOG_FORMATS))
    assert max(map(len, HELP.splitlines())) < 80
