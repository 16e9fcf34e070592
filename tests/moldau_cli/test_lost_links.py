"""Goal: `moldau cluster start` starts the proxies of the links again, as errors about links advise.

Method: the file of a cluster whose nodes seem to run, as this process does, and the file of proxies that have ended.
"""

import os

import pytest

from moldau_cli.commands import cluster as commands
from moldau_cli.main import main
from moldau_jepsen.chaos.network import panel
from moldau_jepsen.launcher.process import start_mark
from moldau_jepsen.launcher.spec import FILE_NAME, ClusterSpec, plan_nodes, to_json


@pytest.fixture
def resumed(tmp_path, monkeypatch):
    """Returns the directories whose proxies were started."""
    found = []
    spec = ClusterSpec(brokers=1, controllers=1, ports=(1, 2), advertised_ports=(3, 4))
    nodes = plan_nodes(spec, tmp_path, spec.ports)
    for node in nodes:
        node.pid, node.started = os.getpid(), start_mark(os.getpid())
    (tmp_path / FILE_NAME).write_text(to_json(nodes))
    monkeypatch.setattr(panel, "resume_links", found.append)
    monkeypatch.setattr(commands, "_start_again", lambda *_: [])
    monkeypatch.setattr(commands, "_runs", lambda _: True)  # no broker of the test answers
    return found


@pytest.mark.parametrize("links_run", [False, True])
def test_a_start_begins_the_proxies_again(resumed, tmp_path, capsys, links_run):
    """It refused because the nodes ran, so the advice of `cluster cut` led nowhere."""
    pid = os.getpid() if links_run else 0
    links = panel.Panel(targets={1: 1, 101: 2}, ports={1: 3, 101: 4}, pid=pid, started=start_mark(pid))
    panel._write(tmp_path, links)
    code = main(["cluster", "start", "--dir", str(tmp_path)])
    assert (code, resumed) == ((1, []) if links_run else (0, [tmp_path]))
    assert ("already runs" in capsys.readouterr().err) == links_run
