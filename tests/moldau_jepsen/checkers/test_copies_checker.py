"""Goal: each way in which a pipeline can break its promise is found in the rows of its two topics, and nothing else is.

Method: rows and copies as values; each case changes a faultless run in one place.
"""

import re
from dataclasses import replace

import pytest

from moldau_jepsen.checkers import AnomalyKind, CheckOptions, Verdict
from moldau_jepsen.checkers.anomalies import Figures
from moldau_jepsen.checkers.log.copies import CopiedRow, Copies, SourceRow, with_copies

ROWS = tuple(SourceRow(n % 2, n // 2, f"k{n % 3}", f"v{n}") for n in range(12))
FAULTLESS = tuple(CopiedRow(0, n, row.partition, row.offset, row.key, row.value) for n, row in enumerate(ROWS))


def verdict_of(copies, rows=ROWS, *, final_phase=True, is_whole=True):
    figures = Figures(
        operations=0,
        sends_acknowledged=0,
        sends_failed=0,
        sends_unknown=0,
        records_polled=0,
        values_seen=0,
        partitions=0,
    )
    options = CheckOptions(final_phase=final_phase)
    before = Verdict(valid=True, counts={}, anomalies=(), figures=figures)
    return with_copies(before, Copies("in", "out", rows, tuple(copies), is_whole), options)


def test_a_faultless_run_is_valid():
    assert verdict_of(FAULTLESS).valid
    assert verdict_of((), ()).valid


def test_an_offset_that_no_log_has_is_a_finding():
    rotten = 1 << 49
    stray = SourceRow(1, rotten, "k1", "v1")
    verdict = verdict_of(FAULTLESS, (*ROWS, stray))
    assert verdict.counts == {AnomalyKind.IMPOSSIBLE_OFFSET: 1}, "it is no row without a copy"
    assert verdict.anomalies[0].text == (
        f"in-1 was read with a row at offset {rotten}, far above 5, the highest one known"
    )
    twice = verdict_of([*FAULTLESS, FAULTLESS[3]._replace(offset=rotten)])
    assert twice.counts == {AnomalyKind.IMPOSSIBLE_OFFSET: 1}
    made_from = [*FAULTLESS[:5], FAULTLESS[5]._replace(source_offset=2 ^ rotten), *FAULTLESS[6:]]
    assert verdict_of(made_from).counts == {AnomalyKind.PIPE_UNKNOWN: 1, AnomalyKind.PIPE_LOST: 1}


BREACHES = {
    "a row without a copy": (FAULTLESS[1:], AnomalyKind.PIPE_LOST, "in-0 offset 0 .* has no copy"),
    "a row with two copies": (
        [*FAULTLESS, FAULTLESS[-1]._replace(offset=12)],
        AnomalyKind.PIPE_DUPLICATE,
        "in-1 offset 5 .* has 2 copies, at out-0 offset 11, out-0 offset 12",
    ),
    "a copy with another value": (
        [FAULTLESS[0]._replace(value="x"), *FAULTLESS[1:]],
        AnomalyKind.PIPE_UNKNOWN,
        "out-0 offset 0 holds .*'x'.* made from in-0 offset 0, which holds .*'v0'",
    ),
    "a copy with another key": ([FAULTLESS[0]._replace(key="x"), *FAULTLESS[1:]], AnomalyKind.PIPE_UNKNOWN, "'x'"),
    "a copy of no row": (
        [*FAULTLESS, CopiedRow(0, 12, -1, -1, "k", "v")],
        AnomalyKind.PIPE_UNKNOWN,
        "in--1 offset -1, which holds no row",
    ),
    "copies of one key that changed places": (
        [FAULTLESS[6], *FAULTLESS[1:6], FAULTLESS[0], *FAULTLESS[7:]],
        AnomalyKind.PIPE_DISORDER,
        "was made from in-0 offset 0, and follows a copy of offset 3",
    ),
}


@pytest.mark.parametrize(("copies", "kind", "text"), BREACHES.values(), ids=BREACHES)
def test_a_breach_is_found(copies, kind, text):
    verdict = verdict_of(copies)
    assert not verdict.valid
    assert verdict.counts[kind] == 1
    assert set(verdict.counts) <= {kind, AnomalyKind.PIPE_LOST}
    (anomaly,) = [each for each in verdict.anomalies if each.kind is kind]
    assert re.search(text, anomaly.text), anomaly.text


def test_sound_copies_excuse_no_wrong_history():
    wrong = replace(verdict_of(FAULTLESS), valid=False, counts={AnomalyKind.PIPE_LOST: 2})
    verdict = with_copies(wrong, Copies("in", "out", ROWS, FAULTLESS[1:]), CheckOptions())
    assert not with_copies(wrong, Copies("in", "out", ROWS, FAULTLESS), CheckOptions()).valid
    assert verdict.counts == {AnomalyKind.PIPE_LOST: 3}


def test_rows_of_other_keys_may_change_places():
    assert verdict_of([FAULTLESS[2], *FAULTLESS[:2], *FAULTLESS[3:]]).valid


def test_a_run_that_was_cut_short_loses_nothing():
    """Without the final phase a row may not be copied yet; two copies are two all the same."""
    assert verdict_of(FAULTLESS[:4], final_phase=False).valid
    twice = verdict_of([*FAULTLESS, FAULTLESS[-1]._replace(offset=12)], final_phase=False)
    assert twice.counts == {AnomalyKind.PIPE_DUPLICATE: 1}


def test_a_query_that_is_ended_early_has_lost_nothing():
    """Nor did rows come from nowhere if the source was not read to its end; other breaches are found all the same."""
    assert verdict_of(FAULTLESS[:4], is_whole=False).valid
    assert verdict_of(FAULTLESS, ROWS[:4], is_whole=False).valid
    for name, (copies, kind, _) in BREACHES.items():
        found = verdict_of(copies, is_whole=False).counts
        assert found == ({} if kind is AnomalyKind.PIPE_LOST else {kind: 1}), name


def test_a_run_without_a_query_is_left_alone():
    verdict = verdict_of(())
    assert not verdict.valid
    assert with_copies(verdict, Copies(), CheckOptions()) is verdict
