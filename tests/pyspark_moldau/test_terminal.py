"""Goal: the figures of a query, its table and its picture say what Spark's reports say. Method: reports as JSON."""

import functools
import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from pyspark_moldau.terminal import watch
from pyspark_moldau.terminal.figures import History, lag_of
from pyspark_moldau.terminal.picture import draw
from pyspark_moldau.terminal.watch import table_of


def report(number, rows, *, end, latest, duration_ms=500):
    return {
        "batchId": number,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "numInputRows": rows,
        "processedRowsPerSecond": rows / (duration_ms / 1000),
        "durationMs": {"triggerExecution": duration_ms},
        "sources": [{"endOffset": end, "latestOffset": latest}],
    }


FIRST = report(0, 10, end={"t": {"0": 10}, "t#x": {}}, latest={"t": {"0": 25, "1": 3}})
SECOND = report(1, 18, end='{"t": {"0": 25, "1": 3}}', latest='{"t": {"0": 25, "1": 3}}', duration_ms=1500)


def test_the_lag_is_what_the_query_has_not_read():
    assert lag_of(FIRST) == 18
    assert lag_of(SECOND) == 0
    assert lag_of({"sources": [{"endOffset": {"logOffset": 7}, "latestOffset": "none"}]}) is None
    assert lag_of({"sources": []}) is None


def test_a_history_counts_each_batch_once():
    history = History()
    history.add([FIRST])
    history.add([FIRST, SECOND])
    idle = report(2, 0, end={"t": {"0": 25}}, latest={"t": {"0": 25}})
    history.add([idle, report(2, 0, end={"t": {"0": 25}}, latest={"t": {"0": 31}})])
    assert (history.count, history.rows, history.busy_ms) == (3, 28, 2500)
    assert [batch.lag for batch in history.batches] == [18, 0, 6]


def test_a_batch_after_an_idle_time_is_counted():
    """Idle triggers are reported under the number of the batch that comes next; each look sees all reports again."""
    at_end = {"t": {"0": 25}}
    idle, batch = report(2, 0, end=at_end, latest=at_end), report(2, 7, end=at_end, latest=at_end)
    history = History()
    for reports in ([FIRST, SECOND, idle], [FIRST, SECOND, idle, batch], [SECOND, idle, batch]):
        history.add(reports)
    assert (history.count, history.rows, history.busy_ms) == (3, 35, 2500)
    assert [each.rows for each in history.batches] == [10, 18, 7]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_table_and_picture_show_the_figures(tmp_path, suffix):
    history = History()
    history.add([FIRST, SECOND])
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table_of("flights", history, "ended"))
    text = console.export_text()
    assert "query flights: ended" in text
    assert "2 batches, 28 rows, 14 rows/s while busy" in text
    assert [line.split()[-2] for line in text.splitlines() if "03:04:05" in line] == ["18", "0"]
    draw(history, tmp_path / f"query.{suffix}", title="flights")
    assert (tmp_path / f"query.{suffix}").stat().st_size > 1000


@pytest.mark.parametrize("state", ["failed: Query [id = 1, runId = 2] ended", "failed: [/data/x] is missing", ":bug:"])
def test_a_state_is_shown_as_it_is(state):
    """Brackets were taken for markup: parts of an error disappeared, and one with a path ended the display."""
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table_of("flights", History(), state))
    assert f"query flights: {state}" in " ".join(console.export_text().split())


def test_an_interrupted_watch_leaves_its_picture(tmp_path, monkeypatch):
    """A query without end is watched until Ctrl-C."""

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=interrupt))  # threads of the JVM bridge sleep too
    reports = [SimpleNamespace(json=json.dumps(FIRST))]
    query = SimpleNamespace(name="flights", isActive=True, recentProgress=reports, status={"message": "at work"})
    with pytest.raises(KeyboardInterrupt):
        watch.watch(query, picture=tmp_path / "query.png", console=Console(file=io.StringIO()))
    assert (tmp_path / "query.png").stat().st_size > 1000


@pytest.mark.parametrize(("name", "error"), [("query.pgn", ValueError), ("gone/query.png", OSError)])
def test_a_picture_that_cannot_be_drawn_is_refused_at_once(tmp_path, name, error):
    """The error came at the end of the watch, and the figures were lost with it."""
    query = SimpleNamespace(name="flights", isActive=False, recentProgress=[], exception=lambda: None)
    console = Console(file=io.StringIO())
    with pytest.raises(error):
        watch.watch(query, picture=tmp_path / name, console=console)
    assert not console.file.getvalue(), "the watch began"


def test_an_old_pyspark_gets_the_required_version(monkeypatch):
    """Spark's search for data sources must go on, so the stand-in fails only where it is used."""
    import pyspark

    import pyspark_moldau

    monkeypatch.setattr(pyspark, "__version__", "4.1.1")
    stand_in = pyspark_moldau.DefaultSource
    assert stand_in.name() == "moldau"
    source = stand_in({})
    # A streamReader that fails ends in an error of Spark's own clean-up (UnboundLocalError) without this text.
    stream = source.streamReader("value binary")
    partitions = functools.partial(stream.partitions, {}, {})
    uses = [source.schema, stream.initialOffset, stream.latestOffset, partitions, functools.partial(source.reader, "")]
    uses += [functools.partial(each, "", False) for each in (source.writer, source.streamWriter)]
    for use in uses:
        with pytest.raises(RuntimeError, match=r"needs PySpark 4\.2 or later, and 4\.1\.1 is installed: pip install"):
            use()
    monkeypatch.setattr(pyspark, "__version__", "4.10.0")
    assert pyspark_moldau.DefaultSource is not stand_in
