"""Goal: logs get a line of progress now and then, and a line with the time at the end. Method: a clock of the test."""

import pytest

from moldau_cli import progress as module
from moldau_cli.progress import LINE_EVERY_S, progress, waiting


class Clock:
    """The time in seconds."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize(("total", "share"), [(None, ""), (2000, " of 2,000"), (0, "")])
def test_lines_come_at_most_every_two_seconds(clock, capsys, total, share):
    with progress("records", total) as bar:
        for at_s in (0, LINE_EVERY_S - 0.1, LINE_EVERY_S, LINE_EVERY_S + 0.1, 2 * LINE_EVERY_S, 9):
            clock.now_s = 100 + at_s
            bar.update(round(1000 * at_s))
    lines = [f"  records: {done}{share}" for done in ("2,000", "4,000", "9,000")]
    assert capsys.readouterr().err.splitlines() == ["records ...", *lines, "records: 9.0 s"]


def test_a_wait_writes_nothing_into_logs(capsys):
    with waiting("views"):
        pass
    assert capsys.readouterr().err == ""


def test_work_that_fails_is_not_done(capsys):
    def fail():
        with progress("records"):
            raise ValueError("the work failed")

    with pytest.raises(ValueError, match="the work failed"):
        fail()
    assert capsys.readouterr().err == "records ...\n"
