"""Goal: a job runs on a Spark cluster of two workers, with Moldau from the archive, and gives the rows of a count.

Method: a standalone master and two workers on this machine, and the job in a driver process of its own. The executors'
Python would find Moldau elsewhere too, so each task says from where it has it.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from moldau_cli.main import main
from pyspark_moldau.session.java import find_java
from pyspark_moldau.session.packaging import session_settings
from support.interop.clients import ConfluentClient, create_topic
from support.spark.shared import shared_broker
from support.spark.standalone import standalone_cluster

pytestmark = [
    pytest.mark.proof,
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
]
JOB_S = 600
HOUR_MS = 3_600_000


def test_a_job_runs_on_two_workers(tmp_path, capsys):
    brokers = shared_broker()
    create_topic(brokers.bootstrap, "spread", 4, 1)
    records = [(f"k{n % 3}".encode(), b"%d" % n, []) for n in range(4000)]
    ConfluentClient(brokers.bootstrap).produce("spread", records)
    archive = tmp_path / "moldau-spark.zip"
    assert main(["--json", "pipeline", "package", str(archive)]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == session_settings(archive)
    with standalone_cluster(tmp_path / "spark", workers=2) as master:
        settings = session_settings(archive) | {
            "spark.master": master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.sql.shuffle.partitions": "2",
        }
        job = tmp_path / "job.toml"
        job.write_text(
            f'[cluster]\nbootstrap.servers = "{brokers.bootstrap}"\n[run]\ncheckpoint = "state"\n'
            '[source]\ntopics = ["spread"]\nmax_records_per_task = 500\n[sink]\ntable = "counts"\n'
            '[aggregate]\nevent_time = "timestamp_millis(cast(cast(value as string) as bigint) * 60000)"\n'
            'watermark = "1 hour"\nwindow = "1 hour"\nkeys = { k = "cast(key as string)" }\n'
            'columns = { n = "count(*)" }\n[spark]\n'
            + "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
        )
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, "-m", "support.spark.standalone_job", str(job)]
        run = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=JOB_S, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout.splitlines()[-1])
    homes = {Path(home) for home, _, _ in found["seen"]}
    assert {home.relative_to(tmp_path / "spark").parts[0] for home in homes} == {"worker-0", "worker-1"}
    for home, package, implementation in found["seen"]:
        assert Path(package) == Path(home) / "moldau" / "moldau"
        assert implementation == "cython"
    assert found["report"] == {"main": 4000}
    last_closed = (3999 * 60_000 - HOUR_MS) // HOUR_MS
    wanted = Counter((n * 60_000 // HOUR_MS, f"k{n % 3}") for n in range(4000))
    expected = [[key, count] for (hour, key), count in sorted(wanted.items()) if hour < last_closed]
    assert len(expected) > 100
    assert found["rows"] == expected
