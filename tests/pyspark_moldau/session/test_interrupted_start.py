"""Goal: a start of Spark that is interrupted leaves no JVM. Method: PySpark's start of the JVM is replaced."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from pyspark_moldau.session import sessions

STARTS = {
    "a job": lambda folder: sessions.start_jvm(folder / "spark.log"),
    "a local session": lambda _: sessions.local_session(),
    "a session on a cluster": lambda _: sessions.cluster_session(),
}


@pytest.mark.parametrize("name", STARTS)
def test_an_interrupted_start_leaves_no_jvm(monkeypatch, tmp_path, name):
    """PySpark removes the folder in which the JVM would tell its address; such a JVM never ends by itself."""
    started = []

    def launch(_conf=None, _kwargs=None):
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        second = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started.extend((process, second))
        of_the_user = SimpleNamespace(pid=process.pid, kill=None)  # no process that PySpark has started
        assert of_the_user.pid
        raise KeyboardInterrupt

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
    monkeypatch.setattr("pyspark.core.context.launch_gateway", launch)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for function in ("_use_java", "_use_this_machine"):
        monkeypatch.setattr(sessions, function, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        STARTS[name](tmp_path)
    are_dead = [process.returncode is not None for process in started]
    for process in started:
        process.kill()
        process.communicate()
    assert are_dead == [True, True]
