"""Goal: what Spark runs as its Python in the tests behaves as an interpreter does.

Method: PySpark's daemon is started as Spark's JVM starts it, and ended in both ways in which the JVM ends it.
"""

import os
import socket
import struct
import subprocess
import sys

import pytest

from support.spark.forked_python import VARIABLE, forked_python

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform == "darwin", reason="libraries do not bear forks on macOS"),
]


def test_a_fork_has_streams_and_exit_code_of_an_interpreter(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    with forked_python():
        program = os.environ[VARIABLE]
        with socket.socket(socket.AF_UNIX) as killed:  # before it asked
            killed.connect(os.path.join(os.path.dirname(program), "socket"))
        words = [program, "-m", "pyspark.daemon", "pyspark.worker"]
        for how in ("input ends", "signal"):
            with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
                (port,) = struct.unpack("!i", daemon.stdout.read(4))
                with socket.create_connection(("127.0.0.1", port), 60) as connection:
                    worker = connection.recv(4)
                    assert len(worker) == 4
                    daemon.stdin.write(worker)  # a request to kill it
                    daemon.stdin.flush()
                    # Python loses what a signal handler raises within os.fork, and the daemon's raises its end
                    assert connection.recv(1) == b"", "the daemon has come back from its fork"
                if how == "signal":
                    daemon.terminate()
                else:
                    daemon.stdin.close()
                assert daemon.wait(60) == 1  # PySpark's daemon always ends with this code
                assert daemon.stdout.read() == b""
        plain = subprocess.run([program, "-c", "print(1); exit(7)"], capture_output=True, timeout=60, check=False)
        assert (plain.returncode, plain.stdout) == (7, b"1\n")
        wrong = subprocess.run(
            [program, "-m", "pyspark.none"], cwd=tmp_path, capture_output=True, timeout=60, check=False
        )
        assert wrong.returncode == 1
        assert b"No module named pyspark.none" in wrong.stderr
    assert VARIABLE not in os.environ
    assert not os.path.exists(program)
