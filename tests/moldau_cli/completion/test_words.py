"""Goal: global options are taken out of an unfinished command line. Method: a pure function."""

import pytest

from moldau_cli.completion.core.words import without_globals


@pytest.mark.parametrize(
    ("words", "typed", "rest", "found", "awaits"),
    [
        (["topics", "describe"], "fl", ["topics", "describe"], {}, ""),
        (["--json", "topics"], "d", ["topics"], {}, ""),
        (["topics", "--profile", "p", "list"], "", ["topics", "list"], {"--profile": "p"}, ""),
        (["topics", "--profile=p"], "l", ["topics"], {"--profile": "p"}, ""),
        (["topics", "--profile"], "p", ["topics"], {}, "--profile"),
        (["--command-config", "f", "topics"], "", ["topics"], {"--command-config": "f"}, ""),
        (["produce", "t", "--", "--profile"], "p", ["produce", "t", "--", "--profile"], {}, ""),
    ],
)
def test_global_options_are_taken_out(words, typed, rest, found, awaits):
    line = without_globals(words, typed)
    assert (line.words, line.typed, line.found, line.awaits) == (rest, typed, found, awaits)


def test_a_value_behind_an_equals_sign_is_completed():
    line = without_globals(["topics"], "--profile=pr")
    assert (line.typed, line.awaits) == ("pr", "--profile")
