"""Goal: the file of a cluster's cuts has those that were asked for, whatever was cut before. Method: no proxies run."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from moldau_jepsen.chaos.network import panel
from moldau_jepsen.chaos.network.panel import Panel, change_cuts, cut_nodes, lacks_links, read_panel, resume_links
from moldau_jepsen.launcher.spec import LauncherUsageError

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = Panel(targets={1: 11, 2: 12, 101: 13}, ports={1: 21, 2: 22, 101: 23}, pid=7, started="now")
STEPS = list(product(WHOLE.ports, (True, False)))


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether the proxies run."""
    state = {"runs": True}
    monkeypatch.setattr(panel, "_runs", lambda found: state["runs"] and found.pid > 0)
    monkeypatch.setattr(panel.time, "sleep", lambda _: None)
    return state


@pytest.mark.parametrize("steps", list(product(STEPS, repeat=3)), ids=str)
def test_a_change_of_one_node_keeps_the_others(
    steps: tuple[tuple[int, bool], ...], running: dict[str, bool], tmp_path: Path
) -> None:
    panel._write(tmp_path, WHOLE)
    wanted: set[int] = set()
    for node, cut in steps:
        change_cuts(tmp_path, node, cut=cut)
        wanted = wanted | {node} if cut else wanted - {node}
        assert cut_nodes(tmp_path) == tuple(sorted(wanted))
    found = read_panel(tmp_path)
    assert found is not None
    assert (found.targets, found.ports, found.pid, found.started) == (WHOLE.targets, WHOLE.ports, 7, "now")


def test_proxies_that_start_again_cut_nothing(
    running: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold no cut of those before them, so the file names none; without a file there are none to start."""
    started: list[str] = []

    def start(module: str, words: list[str], **_: Any) -> Any:
        found = read_panel(tmp_path)
        assert found is not None
        started.append(module)
        assert (words, found.cut, found.pid) == ([str(tmp_path)], (), 0)
        panel._write(tmp_path, WHOLE)
        running["runs"] = True
        return SimpleNamespace(poll=lambda: None, returncode=None)

    monkeypatch.setattr(panel.interpreter, "start_module", start)
    resume_links(tmp_path)
    assert (started, cut_nodes(tmp_path), lacks_links(tmp_path)) == ([], None, False)
    panel._write(tmp_path, WHOLE)
    change_cuts(tmp_path, 2, cut=True)
    resume_links(tmp_path)
    assert (started, cut_nodes(tmp_path), lacks_links(tmp_path)) == ([], (2,), False)
    running["runs"] = False
    assert (cut_nodes(tmp_path), lacks_links(tmp_path)) == (None, True)
    with pytest.raises(LauncherUsageError, match="the proxies of the links do not run"):
        change_cuts(tmp_path, 1, cut=True)
    resume_links(tmp_path)
    assert (len(started), cut_nodes(tmp_path), lacks_links(tmp_path)) == (1, (), False)
