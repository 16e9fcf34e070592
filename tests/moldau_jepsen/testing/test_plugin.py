"""Goal: the plugin runs a test in the simulation or on processes as its marker says, and the documented examples work.

Method: the examples of docs/TESTING.md are cut out and run by a pytest of their own; small tests in files for the rest.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "TESTING.md"
ROOTS = [path for path in sys.path if path]


def run_pytest(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests of a directory in another interpreter, with the sources of this one."""
    code = f"import sys; sys.path[:0] = {ROOTS!r}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", "-W", "error", *words, str(directory)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=900, check=False)


def examples() -> list[str]:
    """The code blocks of the document's part on pipelines."""
    part = DOCUMENT.read_text().split("## Testing your own pipeline")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", part, re.DOTALL)


def test_the_documented_consumer_is_tested_in_the_simulation(tmp_path: Path) -> None:
    (tmp_path / "test_payments.py").write_text(examples()[0])
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.processes
def test_the_documented_tests_run_on_processes(tmp_path: Path) -> None:
    (tmp_path / "test_payments.py").write_text(examples()[0].replace("simulated=True, seeds=[1]", ""))
    (tmp_path / "test_plain.py").write_text(examples()[1])
    done = run_pytest(tmp_path, "--deselect", "test_payments.py::test_without_the_number_orders_are_paid_twice")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


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
"""What is put between the writing and the reading of the documented test, so that an acknowledged record is gone."""


@pytest.mark.processes
def test_the_documented_test_fails_when_an_acknowledged_record_is_lost(tmp_path: Path) -> None:
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


FAULTS = """
import pytest
import trio

from moldau import Producer


@pytest.mark.moldau(hostile=True, settings={"log.flush.interval.messages": "1"})
async def test_every_fault(moldau_cluster, tmp_path):
    await moldau_cluster.create_topic("orders")
    settings = {"bootstrap.servers": moldau_cluster.bootstrap}
    async with Producer(settings, environment=moldau_cluster.environment) as producer:

        async def send(token):
            sent = await (await producer.send("orders", token.encode()))
            moldau_cluster.history.sent("orders", sent.partition, sent.offset, token)
            moldau_cluster.history.took_effect(token)

        await send("a")
        await moldau_cluster.pause(1)
        await moldau_cluster.resume(1)
        await moldau_cluster.cut(2)
        await moldau_cluster.cut(3, 101)
        await moldau_cluster.heal()
        await send("b")
        await moldau_cluster.kill(101)
        await moldau_cluster.start(101)
        await moldau_cluster.power_loss()
        await moldau_cluster.wait_healthy()
        await send("c")
    moldau_cluster.check()
    trio.current_time()


async def test_a_broken_promise_names_its_seed(moldau_cluster):
    moldau_cluster.history.sent("orders", 0, 0, "never read")
    moldau_cluster.check()
"""


def test_the_option_simulates_and_a_failure_names_its_seed(tmp_path: Path) -> None:
    (tmp_path / "test_faults.py").write_text(FAULTS)
    done = run_pytest(tmp_path, "--moldau-simulated")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "1 acknowledged without effect: 'never read'" in done.stdout
    assert "in the simulation, with seed 1" in done.stdout


@pytest.mark.processes
def test_every_fault_strikes_processes_too(tmp_path: Path) -> None:
    (tmp_path / "test_faults.py").write_text(FAULTS)
    done = run_pytest(tmp_path, "-k", "every_fault")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


WRONG = """
import pytest


@pytest.mark.moldau(simulated=True)
def test_plain(moldau_cluster): ...


@pytest.mark.moldau(color="red")
def test_unknown(moldau_cluster): ...
"""


def test_wrong_markers_are_named(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(WRONG)
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "only a test that is a coroutine function can be simulated" in done.stdout
    assert "unexpected keyword argument 'color'" in done.stdout
