"""Goal: an unfinished command line has the words that were typed, without global options. Method: pure functions."""

import pytest

from moldau_cli.completion.core.words import rejoined, without_globals


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


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        ("-b h : 9092 fli", "-b h:9092 fli"),
        ("-b h : 1,i : 2 fli", "-b h:1,i:2 fli"),
        ("-b [ :: 1] : 9092 fli", "-b [::1]:9092 fli"),
        ("--bootstrap-server = h : 9092 fli", "--bootstrap-server=h:9092 fli"),
        ("--profile = te", "--profile=te"),
        ("-X client.id = a = b fli", "-X client.id=a=b fli"),
        ("--from 2026-03-01T12 : 00 : 00 fli", "--from 2026-03-01T12:00:00 fli"),
        ("-K : fli", "-K : fli"),
        ("-K = fli", "-K = fli"),
        ("--key-separator : fli", "--key-separator : fli"),
        ("-- - x", "-- - x"),
        ("", ""),
    ],
)
def test_words_that_bash_divides_are_joined(words, joined):
    """Nothing was completed behind an address: its port was taken for an argument."""
    assert rejoined(words.split(" ")) == joined.split(" ")


def test_an_empty_word_stays_apart():
    assert rejoined(["-b", "h", ":", ""]) == ["-b", "h:", ""]
