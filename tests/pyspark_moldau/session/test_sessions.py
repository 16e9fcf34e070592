"""Goal: a session has the settings of its kind and the user's own, and is made ready without changing others.

Method: PySpark's builder and session are replaced by ones that note what they are given.
"""

import itertools
from types import SimpleNamespace
from unittest.mock import MagicMock

import pyspark.sql
import pytest

from pyspark_moldau import versions
from pyspark_moldau.session import sessions
from pyspark_moldau.session.sessions import CLUSTER_DEFAULTS, DEFAULTS, REDACTED, SECRET_OPTIONS, prepare
from pyspark_moldau.source.data_source import DefaultSource


class Session:
    """A session with settings, registered sources, and a JVM whose thread has an active session or none."""

    def __init__(self, settings=(), active=True, connect=False):
        self.settings, self.registered, self.levels, self.activated = dict(settings), [], [], []
        self.conf = SimpleNamespace(get=self.get, set=self.settings.__setitem__)
        self.dataSource = SimpleNamespace(register=self.registered.append)
        self.sparkContext = SimpleNamespace(setLogLevel=self.levels.append)
        if not connect:
            self._jsparkSession = "of Java"
            java = SimpleNamespace(
                getActiveSession=lambda: SimpleNamespace(isEmpty=lambda: not active),
                setActiveSession=self.activated.append,
            )
            self._jvm = SimpleNamespace(SparkSession=java)

    def get(self, name, *default):
        return self.settings.get(name, *default)


PATTERNS = {
    None: f"(?i){SECRET_OPTIONS}",
    "": f"(?i){SECRET_OPTIONS}",
    "(?i)url": f"(?i)url|{SECRET_OPTIONS}",
    f"(?i)url|{SECRET_OPTIONS}": f"(?i)url|{SECRET_OPTIONS}",
}


def test_a_session_is_made_ready_and_stays_as_it_was_else():
    """A thread without an active session gets this one; a session of Spark Connect has no JVM."""
    for pattern, (active, connect) in itertools.product(PATTERNS, ((True, False), (False, False), (False, True))):
        given = {REDACTED: pattern, "other": "x"}
        session = Session({name: value for name, value in given.items() if value is not None}, active, connect)
        assert prepare(session) is session
        assert session.settings == {REDACTED: PATTERNS[pattern], "other": "x"}
        assert session.registered == [DefaultSource]
        assert session.activated == (["of Java"] if not active and not connect else [])
        assert prepare(session).settings == session.settings, "a second time changes nothing"


RELEASES = {
    **dict.fromkeys(["4.2", "4.2.0", "4.2.1.dev1", "4.3", "4.10.0", "5.0.0", "10.1"], True),
    **dict.fromkeys(["4.1.9", "4.0", "3.5.1", "3.9", "4", "unknown", ""], False),
}


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_of_pyspark_is_compared_by_its_numbers(monkeypatch, release):
    monkeypatch.setattr("pyspark.__version__", release)
    assert versions.is_supported() == RELEASES[release]
    session = Session()
    if RELEASES[release]:
        assert prepare(session) is session
        return
    with pytest.raises(
        versions.UnsupportedSparkError, match=rf"needs PySpark 4\.2 or later, and {release} is installed"
    ):
        prepare(session)
    assert not session.registered


@pytest.fixture
def started(monkeypatch):
    """The steps of a start of Spark in their order."""
    steps = []
    session = Session()

    class Builder:
        def appName(self, name):
            steps.append(("name", name))
            return self

        def config(self, key, value):
            steps.append((key, value))
            return self

        def getOrCreate(self):
            steps.append("session")
            return session

    monkeypatch.setattr(pyspark.sql, "SparkSession", SimpleNamespace(builder=Builder()))
    monkeypatch.setattr(sessions, "_use_this_machine", lambda: steps.append("this machine"))
    monkeypatch.setattr(sessions, "_use_java", lambda: steps.append("Java"))
    monkeypatch.setattr(sessions, "_start_gateway", lambda settings, stderr=None: steps.append(("JVM", dict(settings))))
    return steps, session


OWN = {"spark.driver.memory": "2g", "spark.sql.session.timeZone": "Europe/Zurich", "spark.x": "y"}


@pytest.mark.parametrize("settings", [None, {}, OWN, {"spark.master": "local[9]"}], ids=str)
def test_a_local_session_has_its_defaults_and_the_users_settings(started, settings):
    steps, session = started
    assert sessions.local_session("mine", cores=3, settings=settings, log_level="WARN") is session
    wanted = {"spark.master": "local[3,4]"} | DEFAULTS | (settings or {})
    assert steps == ["this machine", "Java", ("JVM", wanted), ("name", "mine"), *wanted.items(), "session"]
    assert (session.levels, session.registered) == (["WARN"], [DefaultSource])


@pytest.mark.parametrize("settings", [None, {}, OWN], ids=str)
def test_a_session_on_a_cluster_has_no_settings_of_one_machine(started, settings):
    """Not the addresses of this machine, for example: workers would connect to themselves."""
    steps, session = started
    assert sessions.cluster_session(settings=settings) is session
    wanted = CLUSTER_DEFAULTS | (settings or {})
    assert steps == ["Java", ("JVM", wanted), ("name", "moldau"), *wanted.items(), "session"]
    assert session.levels == ["ERROR"]
    assert not {name for name in CLUSTER_DEFAULTS if ".driver." in name or ".ui.enabled" in name or "shuffle" in name}


def test_a_jvm_writes_to_its_log(monkeypatch, tmp_path):
    """Also one that is there: a query of a notebook may follow a job."""
    steps = []
    monkeypatch.setattr(sessions, "_use_this_machine", lambda: steps.append("this machine"))
    monkeypatch.setattr(sessions, "_use_java", lambda: steps.append("Java"))
    monkeypatch.setattr(
        sessions, "_start_gateway", lambda settings, stderr: steps.append((dict(settings), stderr.write(b"second\n")))
    )
    log = tmp_path / "spark.log"
    log.write_text("first\n")
    sessions.start_jvm(log, {"spark.driver.memory": "2g"})
    assert steps == ["this machine", "Java", (DEFAULTS | {"spark.driver.memory": "2g"}, 7)]
    assert log.read_text() == "first\nsecond\n"


@pytest.mark.parametrize("running", [True, False])
def test_a_jvm_that_runs_stays_as_it_is(monkeypatch, running):
    launched, taken = [], []
    context = SimpleNamespace(
        _gateway="there" if running else None, _ensure_initialized=lambda **given: taken.append(given)
    )
    conf = MagicMock()
    conf().setAll = lambda shown: ("conf", shown)
    monkeypatch.setattr("pyspark.SparkContext", context)
    monkeypatch.setattr("pyspark.SparkConf", conf)
    monkeypatch.setattr(
        "pyspark.java_gateway.launch_gateway", lambda conf, more: launched.append((conf, more)) or "the gateway"
    )
    sessions._start_gateway({"spark.a": "1", "spark.password": "2"}, "the log")
    settings = ("conf", [("spark.a", "1")])
    assert launched == ([] if running else [(settings, {"stderr": "the log"})])
    assert taken == ([] if running else [{"gateway": "the gateway", "conf": settings}])
