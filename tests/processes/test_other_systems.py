"""Goal: nodes and their launcher run where system calls of Linux are missing, as on macOS.

Method: real processes whose interpreter hides the calls before anything is imported, and a launcher that does not see
/proc. The controllers speak TLS, so that private keys pass through files.
"""

import os
import sys

import pytest

from moldau_jepsen.launcher import ClusterSpec, process_table, start_cluster
from support.certificates import authority
from support.interop.clients import ConfluentClient, create_topic

pytestmark = pytest.mark.processes

HIDDEN = """
import errno, os
for module, name in ((os, "fdatasync"), (os, "memfd_create"), (os, "preadv"), (os, "pwritev"), (errno, "ENONET")):
    delattr(module, name)
"""
PROBE = "import os, moldau.runtime.ports.real; assert not hasattr(os, 'fdatasync') and not hasattr(os, 'preadv')"


def test_a_cluster_runs_without_calls_that_only_linux_has(tmp_path, monkeypatch):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDDEN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hidden), *filter(None, sys.path)]))
    monkeypatch.setattr(process_table, "PROC", tmp_path / "no-proc")
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-P", "-c", PROBE]) == 0, "the nodes lack the calls"
    chain, key = authority().issue("127.0.0.1")
    (tmp_path / "node.pem").write_text(key + chain)
    (tmp_path / "trust.pem").write_text(authority().trust)
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
        "ssl.keystore.location": str(tmp_path / "node.pem"),
        "ssl.truststore.location": str(tmp_path / "trust.pem"),
    }
    cluster = start_cluster(tmp_path / "cluster", ClusterSpec(controllers=1, brokers=1, settings=settings))
    try:
        assert all(node.started.startswith("ps:") for node in cluster.nodes)
        create_topic(cluster.bootstrap, "t", partitions=1, replicas=1)
        client = ConfluentClient(cluster.bootstrap)
        client.produce("t", [(None, b"%d" % number, []) for number in range(100)])
        cluster.kill(1)
        cluster.start_node(1)
        found = client.consume("t", 1, 100)
        assert [value for _, _, _, value, _ in found] == [b"%d" % number for number in range(100)]
        cluster.pause(1)
        cluster.resume(1)
        assert cluster.stop_all() == []
    finally:
        cluster.shut_down()
