"""Goal: commands show tables and documents with the right columns, ask for the right changes, and refuse wrong usage.

Method: each command of the files in ``transcripts`` runs against a sample cluster in memory. Its whole output, its exit
code and the calls that change something are as the file says.
"""

from pathlib import Path

import pytest

from support.client.transcripts import PROMPT, transcript, transcripts_in

FOLDER = Path(__file__).parent / "transcripts"
TRANSCRIPTS = [each for path in sorted(FOLDER.glob("*.txt")) for each in transcripts_in(path)]


def command_of(text: str) -> str:
    return text.splitlines()[0].removeprefix(PROMPT)


@pytest.mark.parametrize("expected", TRANSCRIPTS, ids=command_of)
def test_a_command_answers_as_its_transcript_says(expected):
    assert transcript(command_of(expected)) == expected


@pytest.mark.parametrize("expected", transcripts_in(FOLDER / "refused.txt"), ids=command_of)
def test_wrong_usage_changes_nothing(expected):
    """One line says what is wrong, and the exit code is 2."""
    _, *shown = expected.splitlines()
    assert [line[:13] for line in shown] == ["  2> moldau: ", "  exit code 2"]


def test_each_command_is_run_once():
    commands = [command_of(each) for each in TRANSCRIPTS]
    assert len(commands) == len(set(commands))
