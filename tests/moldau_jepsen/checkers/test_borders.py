"""Goal: each rule of the checkers convicts at its border, and acquits a step outside of it.

Method: a table of pairs of histories by hand (``support.kit.borders``); each rule has one at least.
"""

import pytest

from moldau_jepsen.simulation.mutants.judged import ALONE
from support.kit.borders.border import Border
from support.kit.borders.facts import BORDERS as FACTS
from support.kit.borders.groups import BORDERS as GROUPS
from support.kit.borders.histories import BORDERS as HISTORIES
from support.kit.borders.logs import BORDERS as LOGS

BORDERS = [*HISTORIES, *GROUPS, *LOGS, *FACTS]
OF_WHOLE_NODES = {
    *("answered-once", "cordon-kept", "counted-is-durable", "hanging-disk-given-up", "late-write", "wait-ends"),
    *("clean-election", "elr-entry-valid", "elr-kept", "fenced-not-in-isr", "isr-change-asked", "isr-incarnation"),
    *("local-range-copied", "remote-copy-committed", "remote-orphan", "remote-range-kept", "remote-start-state"),
    *("recovery-point-durable", "truncation-keeps", "unclean-restart"),
}
"""Rules on images, disks and object stores; both of their sides are in ``tests/moldau_jepsen/simulation/judge``."""


@pytest.mark.parametrize("border", BORDERS, ids=lambda each: f"{each.rule}: {each.where}")
def test_each_side_of_a_border(border: Border) -> None:
    assert border.rule in border.wrong()
    assert border.sound() == set()


def test_each_rule_has_a_border() -> None:
    """``ALONE`` has all rules and checkers (``test_rules_alone.py``)."""
    assert {border.rule for border in BORDERS} == {*ALONE, "G0"} - OF_WHOLE_NODES
