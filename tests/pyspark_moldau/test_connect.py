"""Goal: a Spark Connect client reads and writes with the same queries, in batches and streams.

Method: a client in a process of its own, whose server Spark starts; it needs ``pyspark[connect]``.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from pyspark_moldau.session.java import find_java
from support.interop.clients import ConfluentClient, create_topic
from support.spark.shared import shared_broker

pytestmark = [
    pytest.mark.proof,
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="pyspark[connect] is not installed"),
]
CLIENT_S = 500


def test_a_connect_client_reads_and_writes(tmp_path):
    brokers = shared_broker()
    for topic in ("connect-in", "connect-out"):
        create_topic(brokers.bootstrap, topic, 2, 1)
    ConfluentClient(brokers.bootstrap).produce("connect-in", [(b"k", b"%d" % n, []) for n in range(300)])
    arguments = [brokers.bootstrap, "connect-in", "connect-out", str(tmp_path / "checkpoint")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "support.spark.connect_queries", *arguments]
    run = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=CLIENT_S, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found == {"client": "pyspark.sql.connect.session", "read": 300, "batch": 300, "stream": 300}
