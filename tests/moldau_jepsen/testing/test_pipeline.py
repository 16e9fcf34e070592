"""Goal: a pipeline's history convicts lost and repeated effects, and wrong logs, and nothing else.

Method: small pipelines by hand.
"""

import pytest

from moldau_jepsen.testing import new_history
from moldau_jepsen.testing.pipeline import PipelineError, PipelineHistory


def pipeline(effects: list[str]) -> PipelineHistory:
    history = new_history()
    for offset, token in enumerate(["a", "b", "c"]):
        history.sent("t", 0, offset, token)
        history.read("worker", "t", 0, offset, token)
    for token in effects:
        history.took_effect(token)
    return history


def test_each_record_once_is_right() -> None:
    verdict = pipeline(["a", "b", "c"]).check()
    verdict.raise_if_wrong()
    assert verdict.log.valid


def test_lost_and_repeated_effects_are_named() -> None:
    verdict = pipeline(["a", "a", "b"]).check()
    assert verdict.lost_effects == ("c",)
    assert verdict.repeated_effects == (("a", 2),)
    with pytest.raises(PipelineError, match="1 acknowledged without effect: 'c'; 1 with repeated effects: 'a' 2 times"):
        verdict.raise_if_wrong()
    with pytest.raises(PipelineError, match="without effect"):
        verdict.raise_if_wrong(at_least_once=True)
    with pytest.raises(PipelineError, match="repeated"):
        verdict.raise_if_wrong(at_most_once=True)
    verdict.raise_if_wrong(at_least_once=True, at_most_once=True)


def test_effects_of_nothing_are_wrong_however_little_was_promised() -> None:
    verdict = pipeline(["a", "b", "c", "z"]).check()
    with pytest.raises(PipelineError, match="never sent: 'z'"):
        verdict.raise_if_wrong(at_least_once=True, at_most_once=True)


def test_records_of_unknown_outcome_may_have_an_effect_or_none() -> None:
    history = pipeline(["a", "b", "c"])
    history.send_failed("t", 0, "d")
    history.check().raise_if_wrong()
    history.took_effect("d")
    history.check().raise_if_wrong()


def test_the_log_is_judged_too() -> None:
    history = pipeline(["a", "b", "c"])
    history.read("worker", "t", 0, 3, "a")
    with pytest.raises(PipelineError, match="duplicate: value 0 lies at offset 0 and at offset 3"):
        history.check().raise_if_wrong()
    history.check(idempotent=False).raise_if_wrong()
    skipping = new_history()
    for offset in range(3):
        skipping.sent("t", 0, offset, offset)
        skipping.took_effect(offset)
    skipping.read("worker", "t", 0, 0, 0)
    skipping.read("worker", "t", 0, 2, 2)
    with pytest.raises(PipelineError, match="skipped offset 1"):
        skipping.check().raise_if_wrong()
    skipping.restarted("worker")
    skipping.read("worker", "t", 0, 1, 1)
    assert len(skipping.check().log.anomalies) == 1


def test_aborted_records_must_not_be_read() -> None:
    history = new_history()
    history.send_failed("t", 0, "x", certain=True)
    history.read("worker", "t", 0, 0, "x")
    with pytest.raises(PipelineError, match="G1a"):
        history.check().raise_if_wrong()
