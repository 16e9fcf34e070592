"""Goal: what was found once is found again: kept runs are clean, and those with a planted bug are convicted.

Method: every case of the corpus, with its faults written out, on the present code. ``moldau sim corpus`` lists, runs
and adds cases; a case costs some seconds of processor time at most, and all of them together about a minute.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.case import (
    FORMER_DRAWS,
    CaseError,
    CaseVerdict,
    case_from_json,
    read_case,
    run_case,
    write_case,
)
from moldau_jepsen.simulation.campaign.corpus import read_corpus

CASES = read_corpus(Path(__file__).parent / "corpus")
LONG = {
    "acknowledged-as-the-device-goes",
    "controllers-asleep",
    "epoch-without-a-record-moved",
    "expelled-while-joining",
    "failed-directory-under-coordinators",
    "failed-log-directory",
    "first-server-silent",
    "first-write-of-a-coordinator-fails",
    "offsets-cleaned-after-a-pause",
    "peers-out-of-reach",
    "power-lost-everywhere",
    "repeated-batches-after-snapshot",
    "share-release-at-shutdown",
    "slow-disks-in-elections",
    "voters-change-while-controllers-die",
}
"""Cases that take more than 3 s of processor time. ``make test-proof`` and ``make sim-corpus`` run them."""


def reported(verdict: CaseVerdict) -> str:
    """Returns the message for a case that did not end as required."""
    wanted = " or ".join(verdict.case.convicted_by) or "a clean run"
    return "\n".join([f"wanted {wanted}: {verdict.text}", verdict.case.why, *verdict.result.timeline[-200:]])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.proof] if case.mutant or case.name in LONG else [], id=case.name)
        for case in CASES
    ],
)
def test_kept_runs_end_as_they_must(case):
    verdict = run_case(case)
    assert verdict.kept, reported(verdict)


def test_there_are_cases_of_both_kinds():
    assert sum(1 for case in CASES if not case.convicted_by) >= 5
    assert sum(1 for case in CASES if case.mutant) >= 5
    assert all(case.faults is not None for case in CASES), "a seed alone is another run as soon as draws change"
    assert all(case.why.strip() for case in CASES)
    assert {case.name for case in CASES} >= LONG


def test_cases_survive_their_files(tmp_path):
    fault = PlannedFault(kind=FaultKind.CUT, begin=0.25, end=1.5, number=3)
    case = replace(CASES[0], name="copy", faults=(fault,), draws={"synced": False, "fault_scope": "brokers"})
    assert read_case(write_case(case, tmp_path)) == case
    assert case.options(1).faults == (fault,)
    assert case.options(1).synced is False
    (tmp_path / "other.json").write_text((tmp_path / "copy.json").read_text())
    with pytest.raises(CaseError, match="the case in it is called 'copy'"):
        read_corpus(tmp_path)


def test_cases_of_earlier_releases_are_read(tmp_path):
    """A field that was renamed has both names in files, and the new one in the case."""
    case = replace(CASES[0], name="copy", draws={"synced": False, "fault_scope": "brokers"})
    text = write_case(case, tmp_path).read_text()
    for former, name in FORMER_DRAWS.items():
        text = text.replace(f'"{name}"', f'"{former}"')
        assert name not in text
    assert case_from_json(json.loads(text)) == case


FAULT = {"kind": "kill", "begin": 1, "end": 2.5, "number": 0}


@pytest.mark.parametrize("document", [[], 5, None, {}, {"name": "n", "why": "w"}])
def test_an_invalid_case_is_refused(document):
    with pytest.raises(CaseError, match="case"):
        case_from_json(document)
    assert case_from_json({"name": "n", "why": "w", "seeds": [1], "faults": [FAULT]}).faults[0].end == 2.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mutant": "gremlin"}, "there is no mutant 'gremlin'"),
        ({"control": "gremlin", "convicted_by": ["x"]}, "there is no control 'gremlin'"),
        ({"profile": "gremlin"}, "there is no profile 'gremlin'"),
        ({"convicted_by": ["lost-write"]}, "convicted_by belongs to a mutant or a control"),
        ({"mutant": "consumer-skips"}, "convicted_by belongs to a mutant or a control"),
        ({"seeds": []}, "a case needs a seed"),
        ({"colour": "red"}, "unknown fields: colour"),
        ({"draws": {"kinds": 1}}, "draws of a case are"),
        ({"draws": 5}, "draws are an object, not 5"),
        ({"draws": {"fault_scope": "zz"}}, 'draws.fault_scope is one of all, controllers, brokers, or null, not "zz"'),
        ({"draws": {"fault_scope": []}}, "draws.fault_scope is one of all, controllers, brokers, or null, not []"),
        ({"draws": {"bank": 1}}, "draws.bank is true, false or null, not 1"),
        ({"draws": {"transaction_level": 3}}, "draws.transaction_level is 1 or 2, or null, not 3"),
        ({"draws": {"transaction_level": True}}, "draws.transaction_level is 1 or 2, or null, not true"),
        ({"draws": {"directories": 0}}, "draws.directories is a number from 1 on, or null, not 0"),
        ({"draws": {"fault_seconds": None}}, "draws.fault_seconds is a number of seconds from 0 to 1000000, not null"),
        (
            {"draws": {"fault_seconds": math.nan}},
            "draws.fault_seconds is a number of seconds from 0 to 1000000, not NaN",
        ),
        ({"faults": 5}, "faults are a list, not 5"),
        ({"faults": ["x"]}, 'faults[0] has the fields begin, end, kind, number, not "x"'),
        ({"faults": [{"kind": "earthquake"}]}, "faults[0] has the fields begin, end, kind, number, not"),
        ({"faults": [{**FAULT, "kind": "earthquake"}]}, "faults[0].kind is one of kill, kill-leader,"),
        ({"faults": [FAULT, {**FAULT, "begin": "x"}]}, "faults[1].begin is a number of seconds from 0 to 1000000, not"),
        ({"faults": [{**FAULT, "end": math.inf}]}, "faults[0].end is a number of seconds from 0 to 1000000, not Inf"),
        ({"faults": [{**FAULT, "end": 0}]}, "faults[0].end is not before begin (1), not 0"),
        ({"faults": [{**FAULT, "number": True}]}, "faults[0].number is a number from 0 on, not true"),
        ({"seeds": "many"}, 'seeds are a list of numbers from 0 on, not "many"'),
        ({"seeds": [math.inf]}, "seeds are a list of numbers from 0 on, not [Infinity]"),
        ({"seeds": [1.5]}, "seeds are a list of numbers from 0 on, not [1.5]"),
        ({"name": 5}, "name is a text, not 5"),
        ({"convicted_by": "lost-write"}, 'convicted_by is a list of texts, not "lost-write"'),
    ],
)
def test_damaged_cases_are_refused(change, said, tmp_path):
    document = {"name": "n", "why": "w", "seeds": [1], **change}
    with pytest.raises(CaseError, match=re.escape(said)) as caught:
        case_from_json(document)
    assert "\n" not in str(caught.value)
    (tmp_path / "n.json").write_text(json.dumps(document))
    with pytest.raises(CaseError, match=r"n\.json: "):
        read_case(tmp_path / "n.json")
