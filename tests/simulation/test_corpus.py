"""Goal: what was found once is found again: kept runs are clean, and those with a planted bug are convicted.

Method: every case of the corpus, with its faults written out, on the present code. ``moldau sim corpus`` lists, runs
and adds cases; a case costs some seconds of processor time at most, and all of them together about a minute.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moldau_jepsen.simulation.case import CaseError, CaseVerdict, case_from_json, read_case, run_case, write_case
from moldau_jepsen.simulation.corpus import read_corpus
from moldau_jepsen.simulation.faults import FaultKind, PlannedFault

CASES = read_corpus(Path(__file__).parent / "corpus")


def told(verdict: CaseVerdict) -> str:
    """What to say of a case that did not end as it must."""
    wanted = " or ".join(verdict.case.convicted_by) or "a clean run"
    return "\n".join([f"wanted {wanted}: {verdict.text}", verdict.case.why, *verdict.result.timeline[-200:]])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kept_runs_end_as_they_must(case):
    verdict = run_case(case)
    assert verdict.kept, told(verdict)


def test_there_are_cases_of_both_kinds():
    assert sum(1 for case in CASES if not case.convicted_by) >= 5
    assert sum(1 for case in CASES if case.mutant) >= 5
    assert all(case.faults is not None for case in CASES), "a seed alone is another run as soon as draws change"
    assert all(case.why.strip() for case in CASES)


def test_cases_survive_their_files(tmp_path):
    fault = PlannedFault(kind=FaultKind.CUT, begin=0.25, end=1.5, number=3)
    case = replace(CASES[0], name="copy", faults=(fault,), draws={"synced": False, "struck": "brokers"})
    assert read_case(write_case(case, tmp_path)) == case
    assert case.options(1).faults == (fault,)
    assert case.options(1).synced is False
    (tmp_path / "other.json").write_text((tmp_path / "copy.json").read_text())
    with pytest.raises(CaseError, match="the case in it is called 'copy'"):
        read_corpus(tmp_path)


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
        ({"faults": [{"kind": "earthquake"}]}, "not a plan of faults"),
        ({"seeds": "many"}, "not a case"),
    ],
)
def test_damaged_cases_are_refused(change, said, tmp_path):
    document = {"name": "n", "why": "w", "seeds": [1], **change}
    with pytest.raises(CaseError, match=said):
        case_from_json(document)
    (tmp_path / "n.json").write_text(json.dumps(document))
    with pytest.raises(CaseError, match=r"n\.json: "):
        read_case(tmp_path / "n.json")
