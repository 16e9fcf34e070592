"""Goal: a user steps through a coroutine test with pytest's options --trace and --pdb, and with breakpoint().

Method: a pytest of their own reads the commands of a debugger. The same test runs in the simulation and on processes.
"""

import re
from pathlib import Path

import pytest

from support.kit.own_pytest import run_pytest

TEST = """
import pytest
import trio


@pytest.mark.moldau(brokers=1, controllers=1, simulated=SIMULATED)
async def test_it(moldau_cluster):
    one = 1
    await trio.sleep(0.01)
    two = one + 1
    assert two == 3
"""
IN_WORLDS = pytest.mark.parametrize("simulated", [True, pytest.param(False, marks=pytest.mark.processes)])


def write(directory: Path, text: str, *, simulated: bool) -> None:
    (directory / "test_it.py").write_text(text.replace("SIMULATED", f"{simulated}"))


@IN_WORLDS
def test_trace_stops_at_the_first_line(tmp_path: Path, *, simulated: bool) -> None:
    write(tmp_path, TEST, simulated=simulated)
    words = ["--trace", *(["--moldau-seeds", "1,2"] if simulated else [])]
    done = run_pytest(tmp_path, *words, given="next\nnext\nnext\np [two] * 2\ncontinue\n")
    stops = re.findall(r"^(?:\(Pdb\) )?> \S+test_it.py\(\d+\)test_it\(\)\n-> (.*)$", done.stdout, re.MULTILINE)
    assert stops == ["one = 1", "await trio.sleep(0.01)", "two = one + 1", "assert two == 3"], done.stdout
    assert "(Pdb) [2, 2]\n" in done.stdout, done.stdout
    assert "not deterministic" not in done.stdout, done.stdout
    assert "1 failed" in done.stdout, done.stdout


@IN_WORLDS
def test_quitting_the_debugger_ends_the_session(tmp_path: Path, *, simulated: bool) -> None:
    write(tmp_path, TEST, simulated=simulated)
    done = run_pytest(tmp_path, "--trace", given="next\nquit\n")
    assert re.search(r"! _pytest.outcomes.Exit: Quitting debugger !+\nno tests ran in", done.stdout), done.stdout


@IN_WORLDS
def test_pdb_stops_where_the_test_has_failed(tmp_path: Path, *, simulated: bool) -> None:
    write(tmp_path, TEST, simulated=simulated)
    done = run_pytest(tmp_path, "--pdb", given="p [two] * 2\ncontinue\n")
    assert re.search(r"> \S+test_it.py\(\d+\)test_it\(\)\n-> assert two == 3\n\(Pdb\) \[2, 2\]\n", done.stdout), (
        done.stdout
    )


def test_a_breakpoint_stops_once(tmp_path: Path) -> None:
    write(tmp_path, TEST.replace("one = 1", "one = 1; breakpoint()"), simulated=True)
    done = run_pytest(tmp_path, given="next\ncontinue\n")
    assert done.stdout.count("PDB set_trace (IO-capturing turned off)") == 1, done.stdout
    assert re.search(r"-> await trio.sleep\(0.01\)\n\(Pdb\) > \S+\n-> two = one \+ 1\n", done.stdout), done.stdout
    assert "not deterministic" not in done.stdout, done.stdout
