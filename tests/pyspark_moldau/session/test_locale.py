"""Goal: Spark writes files with any name in any locale. Method: PySpark's start of the JVM is replaced."""

import locale
import os

import pytest
from pyspark import SparkContext

from pyspark_moldau.session import sessions


class StartedError(Exception):
    """Ends a start before there is a JVM."""


@pytest.fixture
def seen(monkeypatch):
    """The locales of the JVMs that were started."""
    found = []

    def launch(_conf, _kwargs=None):
        found.append(os.environ.get("LC_ALL"))
        raise StartedError

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for name in ("_use_java", "_use_this_machine"):
        monkeypatch.setattr(sessions, name, lambda: None)
    return found


@pytest.mark.parametrize(
    ("encoding", "given", "jvm"),
    [
        ("ANSI_X3.4-1968", "C", "C.UTF-8"),
        ("ISO-8859-1", None, "C.UTF-8"),
        ("UTF-8", "de_DE.UTF-8", "de_DE.UTF-8"),
        ("utf-8", None, None),
    ],
)
def test_the_jvm_can_write_each_name_of_a_file(seen, monkeypatch, encoding, given, jvm):
    """Java encodes the names of files by the locale, and Python takes UTF-8: they would name different files."""
    monkeypatch.setattr(locale, "getencoding", lambda: encoding)
    if given is None:
        monkeypatch.delenv("LC_ALL", raising=False)
    else:
        monkeypatch.setenv("LC_ALL", given)
    with pytest.raises(StartedError):
        sessions.local_session()
    assert (seen, os.environ.get("LC_ALL")) == ([jvm], given), "the process keeps its own"
