"""Goal: no secret setting is on the command line of the JVM. Method: PySpark's start of the JVM is replaced."""

import pytest
from pyspark import SparkContext, java_gateway

from pyspark_moldau.session import sessions

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.hadoop.fs.s3a.access.key": "AKIA",
    "spark.hadoop.fs.s3a.secret.key": "s3cr3t",
    "spark.ssl.keyStorePassword": "s3cr3t",
}


class StartedError(Exception):
    """Ends a session before there is one."""


@pytest.fixture
def shown(monkeypatch):
    """The settings with which the JVM is started."""
    found = {}

    def launch(conf, kwargs=None):
        found.update(conf.getAll())
        raise StartedError

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    monkeypatch.setattr("pyspark.core.context.launch_gateway", launch)  # PySpark's own start
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for name in ("_use_java", "_use_this_machine"):
        monkeypatch.setattr(sessions, name, lambda: None)
    return found


def test_the_jvm_of_a_job_starts_without_secrets(shown, tmp_path):
    with pytest.raises(StartedError):
        sessions.start_jvm(tmp_path / "spark.log", SETTINGS)
    assert shown["spark.driver.memory"] == "1g"
    assert not {name for name, value in shown.items() if value in ("AKIA", "s3cr3t")}


def test_the_jvm_of_a_session_starts_without_secrets(shown):
    with pytest.raises(StartedError):
        sessions.cluster_session(settings=SETTINGS)
    assert shown["spark.driver.memory"] == "1g"
    assert not {name for name, value in shown.items() if value in ("AKIA", "s3cr3t")}
