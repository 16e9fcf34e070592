"""Each story in ``stories/`` comes out as it is written there, word by word; planted bugs make some come out otherwise.

The stories are the schedules that random faults hardly ever produce: figure 8 of the Raft paper, late snapshots, a
membership change under a partition. ``support/raft/story.py`` explains the language.
"""

import pytest

from support.raft.mutants import BUGS, mutant
from support.raft.story import STORIES, run_story

PATHS = sorted(STORIES.glob("*.txt"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_story_comes_out_as_written(path):
    text = path.read_text()
    assert run_story(text) == text


def differs(path):
    """Whether a story fails, or ends otherwise than it is written."""
    text = path.read_text()
    try:
        return run_story(text) != text
    except AssertionError:
        return True


@pytest.mark.parametrize(
    ("name", "story"),
    [(bug.name, judge.removeprefix("story ")) for bug in BUGS for judge in bug.judges if judge.startswith("story ")],
)
def test_story_finds_planted_bug(name, story):
    with mutant(name):
        assert differs(STORIES / f"{story}.txt")
