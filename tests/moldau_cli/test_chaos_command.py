"""Goal: the chaos commands report wrong arguments in one line, and judge a recorded run.

Method: the command line in this process, on folders without a cluster.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from moldau_cli.commands.chaos import parse_kinds, progress_bar
from moldau_cli.errors import UsageError
from moldau_cli.main import run
from moldau_cli.signals import interrupted_by_sigterm
from moldau_jepsen.chaos.campaign import RUNS_MAX
from moldau_jepsen.chaos.clients import Workload
from moldau_jepsen.chaos.controls import CONTROLS
from moldau_jepsen.chaos.folder import ChaosResult, RunFacts, judge, write_facts
from moldau_jepsen.chaos.options import ChaosOptions
from moldau_jepsen.chaos.run import Progress
from moldau_jepsen.checkers import CheckOptions
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.history import write_history
from moldau_jepsen.reports.controls import ControlRow


def test_kinds_are_read_and_unknown_ones_named() -> None:
    assert parse_kinds("kill, pause,kill", ()) == (FaultKind.KILL, FaultKind.PAUSE)
    assert parse_kinds("all", (FaultKind.ELECT,)) == (FaultKind.ELECT,)
    assert parse_kinds("none", (FaultKind.ELECT,)) == ()
    with pytest.raises(UsageError, match="unknown fault 'fire'; known: kill, pause"):
        parse_kinds("kill,fire", ())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chaos", "run", "--workload", "poker"], "unknown workload 'poker'"),
        (["chaos", "run", "--faults", "fire"], "unknown fault 'fire'"),
        (["chaos", "run", "--bootstrap", "127.0.0.1:1", "--faults", "kill"], "need the cluster's own processes"),
        (["chaos", "run", "--config", "novalue"], "expected KEY=VALUE"),
        (["chaos", "report", "."], "no chaos run in"),
        (["chaos", "run", "--control", "no-such"], "unknown control 'no-such'"),
        (
            ["chaos", "run", "--control", "acks-1", "--bootstrap", "127.0.0.1:1"],
            "control acks-1 is for a fresh cluster",
        ),
        (["chaos", "run", "--network", "pigeons"], "unknown network 'pigeons'; known: proxies, namespaces"),
        (["chaos", "run", "--faults", "kill,loss"], "fault loss needs packets: give --network namespaces"),
        (["chaos", "run", "--network", "namespaces"], "no --network namespaces: network namespaces need root"),
        (
            ["chaos", "run", "--network", "namespaces", "--bootstrap", "127.0.0.1:1"],
            "no --network namespaces: they are for a fresh cluster",
        ),
        (["chaos", "run", "--duration", "inf"], "duration must be a number of seconds, not inf"),
        (["chaos", "run", "--producer", "ack=1"], "ack: unknown producer configuration key; did you mean acks?"),
        (["chaos", "run", "--producer", "acks=7"], "acks"),
        (["chaos", "run", "--consumer", "foo=bar"], "foo: unknown consumer configuration key"),
        (["chaos", "run", "--config", "retention.ms=abc"], "retention.ms"),
        (["chaos", "run", "--set", "log.retention.ms=abc"], "log.retention.ms"),
        (["chaos", "run", "--set", "foo=bar"], "foo: unknown broker configuration key"),
        (["chaos", "run", "--brokers", "99999"], "number of brokers must be 1..99"),
        (["chaos", "run", "--bootstrap", "xx"], "'xx' is not host:port"),
        (["chaos", "run", "--bootstrap", "127.0.0.1:1", "--set", "a=b"], "a: configuration of nodes is for a fresh"),
        (["chaos", "run", "--control", "acks-1", "--duration", "9"], "leave out --duration"),
        (["chaos", "run", "--control", "acks-1", "--set", "a=b"], "leave out --set"),
        (["chaos", "run", "--dir", f"{__file__}/run"], "is no directory that can be written to"),
    ],
)
def test_wrong_words_end_with_two_and_one_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["moldau", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert list(tmp_path.iterdir()) == [], "the corrected command may have the folder"


@pytest.mark.parametrize("in_background", [False, True])
def test_sigterm_ends_a_run_as_an_interrupt_does(in_background: bool) -> None:
    """SIGTERM interrupts a run, which then cleans up, even in the background with SIGINT ignored."""
    cleaned = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            with trio.fail_after(120):
                await trio.sleep_forever()
        finally:
            cleaned.append(True)

    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN if in_background else signal.default_int_handler)
    try:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupted_by_sigterm():
            trio.run(main)
        assert cleaned == [True]
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    finally:
        signal.signal(signal.SIGINT, interrupt)


def test_a_directory_that_is_in_use_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("precious")
    monkeypatch.setattr("sys.argv", ["moldau", "chaos", "run", "--dir", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert "not an empty directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


PROCESS_CONTROLS = [name for name, control in CONTROLS.items() if control.workload is not Workload.SPARK]
"""Controls of runs without Spark."""


@pytest.mark.parametrize(
    ("words", "controls", "found", "code"),
    [
        (["--seed", "4"], ["unclean-election"], (("lost-write", 3),), 0),
        (["--seed", "5"], ["acks-1"], (), 1),
        (["--seed", "6", "--duration", "600"], PROCESS_CONTROLS, (("G1a", 1),), 1),
        (["--no-controls"], [], (), 0),
        (["--bootstrap", "127.0.0.1:1", "--faults", "none"], ["read-uncommitted"], (("G1a", 2),), 0),
        (["--bootstrap", "127.0.0.1:1", "--faults", "none", "--no-controls"], [], (), 0),
    ],
)
def test_a_run_fails_if_one_of_its_controls_is_acquitted(
    words: list[str],
    controls: list[str],
    found: tuple[tuple[str, int], ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run includes its negative controls, and fails if one of them is acquitted."""

    def run_chaos(options: ChaosOptions, report: Callable[[Progress], None]) -> ChaosResult:
        options.directory.mkdir(parents=True)
        with (options.directory / "history").open("wb") as stream:
            write_history(stream, [])
        write_facts(
            options.directory, RunFacts(duration_s=1, settings={}, promised=CheckOptions(), faults=(), samples=())
        )
        result = judge(options.directory)
        if options.control is None:
            return result
        ran.append(options.control.name)
        wanted = tuple(kind.value for kind in options.control.convicted_by)
        return replace(result, control=ControlRow(options.control.name, options.control.text, wanted, found))

    ran: list[str] = []
    monkeypatch.setattr("moldau_jepsen.chaos.campaign.run_chaos", run_chaos)
    monkeypatch.setattr("sys.argv", ["moldau", "chaos", "run", "--dir", str(tmp_path / "run"), *words])
    with pytest.raises(SystemExit) as ended:
        run()
    assert (ended.value.code or 0) == code
    assert list(dict.fromkeys(ran)) == controls
    assert all(ran.count(name) in (1, RUNS_MAX) for name in ran)
    said = " ".join(capsys.readouterr().out.split())
    assert "no anomaly, but no fault took effect" in said
    for name in controls:
        assert f"control {name}: {'convicted by' if not code else ''}" in said
    assert ("ACQUITTED" in said) is bool(code)


@pytest.mark.parametrize("note", ["moldau chaos report [a]/b", "moldau chaos report a[/b]", "no [/]"])
def test_brackets_in_the_name_of_a_folder_are_shown(note: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They were taken for markup: the name lost them, or the run ended in a traceback before its verdict."""
    at = Progress(phase="end", elapsed_s=1.5, duration_s=2, acknowledged=1, polled=2, fault=f"kill {note}", note=note)
    with progress_bar(2) as report:
        report(at)
    shown = capsys.readouterr().err.splitlines()
    assert {note, f"     1.5 s  kill {note}"} <= {line.strip("\r") for line in shown}


def test_a_failed_run_claims_no_soundness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The violations that members of share groups saw are judged apart from the history."""
    with (tmp_path / "history").open("wb") as stream:
        write_history(stream, [])
    lost = "share-lost: offset 4 of share-0: delivered 0 times, neither accepted nor rejected"
    facts = RunFacts(duration_s=1, settings={}, promised=CheckOptions(), faults=(), samples=(), deaths=(lost,))
    write_facts(tmp_path, facts)
    monkeypatch.setattr("sys.argv", ["moldau", "chaos", "report", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 1
    assert capsys.readouterr().out.startswith(f"FAILED; {lost}; 0 writes acknowledged")
