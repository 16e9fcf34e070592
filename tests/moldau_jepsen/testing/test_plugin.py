"""Goal: the plugin runs a test in the simulation or on processes as its marker says, and the documented examples work.

Method: a pytest of their own runs the examples of docs/guides/tester.md; small tests in files do the rest. The example
for the simulation runs in the session of ``test_plugin_reports``.
"""

import re
from pathlib import Path

import pytest
import trio

from moldau.admin import LATEST, Admin
from moldau_jepsen.testing.pipeline import PipelineError
from moldau_jepsen.testing.scenario import SimulatedProcesses, run_simulated
from support.kit import every_fault
from support.kit.own_pytest import examples, run_pytest
from support.proof import proof_beyond


@pytest.mark.processes
def test_the_documented_tests_run_on_processes(tmp_path: Path) -> None:
    (tmp_path / "test_payments.py").write_text(examples()[0].replace("simulated=True, seeds=[1]", ""))
    (tmp_path / "test_plain.py").write_text(examples()[1])
    (tmp_path / "test_mails.py").write_text(examples()[2])
    done = run_pytest(tmp_path, "--deselect", "test_payments.py::test_without_the_number_orders_are_paid_twice")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


LOSSES = {
    "head": """
    from moldau.blocking import Admin
    with Admin(settings) as admin:
        admin.delete_records({PAYMENTS: 1})
""",
    "tail": """
    history.sent("payments", 0, metadata.offset + 1, "100")  # acknowledged by a leader that lost it
""",
}
"""Lines between the writing and the reading of the documented test that lose an acknowledged record."""


@pytest.mark.processes
@pytest.mark.proof
def test_the_documented_test_fails_on_a_lost_record(tmp_path: Path) -> None:
    """The test of the documentation fails when an acknowledged record is lost."""
    read_back = "\n    with Consumer("
    assert examples()[1].count(read_back) == 1
    for name, loss in LOSSES.items():
        text = examples()[1].replace(read_back, loss + read_back).replace("payments", f"payments-{name}")
        (tmp_path / f"test_{name}.py").write_text(text)
    done = run_pytest(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed" in done.stdout
    for number in (0, 100):
        assert re.search(rf"PipelineError: .*\b1 acknowledged without effect: '{number}'\n", done.stdout), done.stdout


FAULTS = Path(every_fault.__file__).read_text()


def test_the_option_simulates_and_a_failure_names_its_seed(tmp_path: Path) -> None:
    (tmp_path / "test_faults.py").write_text(FAULTS)
    done = run_pytest(tmp_path, "--moldau-simulated")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "1 acknowledged without effect: 'never read'" in done.stdout
    assert "in the simulation, with seed 1" in done.stdout


@pytest.mark.processes
@pytest.mark.proof
def test_every_fault_strikes_processes_too(tmp_path: Path) -> None:
    (tmp_path / "test_faults.py").write_text(FAULTS)
    done = run_pytest(tmp_path, "-k", "every_fault")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("fault", proof_beyond(1, ["pause", "resume", "cut", "heal", "kill", "start", "power_loss"]))
def test_a_fault_that_does_nothing_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SimulatedProcesses, fault, nothing)
    with pytest.raises(AssertionError):
        run_simulated(every_fault.test_every_fault, seed=1, brokers=3, controllers=3, settings=every_fault.SYNCED)


@pytest.mark.proof
def test_a_loss_of_everything_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def power_comes_back(cluster: SimulatedProcesses) -> None:
        await wait_healthy(cluster)
        async with Admin({"bootstrap.servers": cluster.bootstrap}, environment=cluster.environment) as admin:
            place = (every_fault.TOPIC, 0)
            await admin.delete_records({place: (await admin.list_offsets({place: LATEST}))[place][0]})

    wait_healthy = SimulatedProcesses.wait_healthy
    monkeypatch.setattr(SimulatedProcesses, "wait_healthy", power_comes_back)
    with pytest.raises(PipelineError, match="5 acknowledged without effect: 'in peace', 'one is paused'"):
        run_simulated(every_fault.test_every_fault, seed=1, brokers=3, controllers=3, settings=every_fault.SYNCED)
