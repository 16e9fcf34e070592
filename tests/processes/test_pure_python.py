"""Goal: a cluster and its clients work on a machine without a C compiler, where the record loops are plain Python.

Method: a real cluster and a real client, in processes in which the extension modules cannot be imported; and one client
that is not ours.
"""

import os
import subprocess
import sys

import pytest

from moldau_jepsen.testing import cluster
from support.interop.clients import ConfluentClient, create_topic

pytestmark = pytest.mark.processes

COUNT = 300
CLIENT = f"""
import sys
from moldau.blocking import Consumer, Producer
from moldau.records import IMPLEMENTATION

assert IMPLEMENTATION == "python", IMPLEMENTATION
bootstrap = {{"bootstrap.servers": sys.argv[1]}}
for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
    with Producer({{**bootstrap, "compression.type": codec}}) as producer:
        sent = [producer.send("pure", b"%d" % number, key=codec.encode()) for number in range({COUNT})]
        assert all(delivery.result(60_000).offset >= 0 for delivery in sent)
with Consumer({{**bootstrap, "group.id": "pure", "auto.offset.reset": "earliest"}}) as consumer:
    consumer.subscribe(["pure"])
    found = []
    while len(found) < 5 * {COUNT}:
        found += [(record.key, record.value) for batch in consumer.poll(1000) for record in batch.records]
    consumer.commit()
for codec in (b"none", b"gzip", b"snappy", b"lz4", b"zstd"):
    assert sorted(int(value) for key, value in found if key == codec) == list(range({COUNT})), codec
"""


def test_a_cluster_without_the_extension_serves(monkeypatch, tmp_path) -> None:
    """Nodes take the environment of the process that starts them. Each logs once which loops it runs."""
    monkeypatch.setenv("MOLDAU_PURE_PYTHON", "1")
    with cluster(brokers=2, controllers=1, links=False, directory=tmp_path) as running:
        create_topic(running.bootstrap, "pure", 2, 2)
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, running.bootstrap],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr.count("records-in-pure-python") <= 1
        client = ConfluentClient(running.bootstrap)
        create_topic(running.bootstrap, "theirs", 2, 2)
        placed = client.produce("theirs", [(b"k", b"v%d" % number, []) for number in range(COUNT)], "lz4")
        found = client.consume("theirs", 2, COUNT)
        assert sorted((partition, offset, value) for partition, offset, _, value, _ in found) == sorted(placed)
    logs = [path.read_text() for path in tmp_path.rglob("*.log") if b"moldau.broker" in path.read_bytes()]
    assert [log.count("records-in-pure-python") for log in logs] == [1, 1]
