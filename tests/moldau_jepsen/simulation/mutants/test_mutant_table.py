"""The document of planted bugs: measured verdicts, and names read off the sources of the suites."""

from dataclasses import replace
from pathlib import Path

import pytest

from moldau_jepsen.simulation.mutants.mutant_table import SUITES, document, planted_names
from moldau_jepsen.simulation.mutants.mutants import MutantVerdict

ROOT = Path(__file__).parents[4]
FOUND = MutantVerdict(
    name="dedup-off",
    area="log",
    text="sequence numbers are not looked at",
    profile="replication",
    found=True,
    seeds=3,
    found_by="producer-sequence",
    detail="seed 3: ...",
)
SURVIVOR = MutantVerdict(
    name="gremlin", area="client", text="bites", profile="swarm", found=False, seeds=200, found_by="", detail=""
)


def test_verdicts_and_the_suites_of_single_parts_are_told():
    text = document([FOUND, SURVIVOR], ROOT)
    assert "1 of 2 found; at most 3 seeds." in text
    row = "| `dedup-off` | log | sequence numbers are not looked at | replication | 3 | `producer-sequence` |"
    assert row in text.splitlines()
    assert "| `gremlin` | client | bites | swarm |  | **survived 200 seeds** |" in text.splitlines()
    for area, path, _ in SUITES:
        assert f"**{area}**, {len(list(planted_names((ROOT / path).read_text())))} bugs" in text


def test_each_rule_alone_has_its_row():
    alone = replace(FOUND, rule="duplicate")
    helpless = replace(SURVIVOR, rule="one-leader")
    text = document([FOUND, alone, helpless], ROOT)
    assert "1 of 1 found; at most 3 seeds." in text  # trials of rules are no hunts of mutants
    assert "| `duplicate` | `dedup-off` | replication | 3 |" in text.splitlines()
    assert "| `one-leader` | `gremlin` | swarm | **nobody in 200 seeds** |" in text.splitlines()
    assert "Each rule alone" not in document([FOUND], ROOT)


def test_names_are_read_off_each_form():
    source = """
@plant("vote lost", (Core, "send"))
def _lost(send): ...

@other("no bug")
def _other(): ...

MUTANTS = {"every election is unclean": []}
BUGS = [(index_off_by_one, False), crc_not_checked]
"""
    assert list(planted_names(source)) == [
        "vote lost",
        "every election is unclean",
        "index_off_by_one",
        "crc_not_checked",
    ]


def test_a_suite_without_bugs_is_refused(tmp_path):
    for _, path, _ in SUITES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("BUGS = []\n")
    with pytest.raises(ValueError, match="plants no bug"):
        document([FOUND], tmp_path)
