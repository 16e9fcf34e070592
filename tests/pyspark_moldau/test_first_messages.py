"""Goal: Spark shows the message of an expected error first, and the traceback of any other.

Method: functions and generators as Spark calls them, in programs of both kinds.
"""

import os
import sys
from types import SimpleNamespace

import pytest

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigError
from pyspark_moldau import errors
from pyspark_moldau.errors import HIDE_TRACEBACK, USER_ERRORS, message_first, message_first_while_read

MADE = {KafkaError: lambda: KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), ConfigError: lambda: ConfigError(["a: b"])}
RAISED = [MADE.get(each, lambda each=each: each("text"))() for each in USER_ERRORS]
OTHERS = [ValueError("x"), KeyError("x"), KeyboardInterrupt()]
PROGRAMS = {
    "pyspark.daemon": True,
    "pyspark.sql.worker.plan_data_source_read": True,
    "pytest": False,
    "pysparkle": False,
}


def read(error):
    yield 1
    if error is not None:
        raise error
    yield 2


def planned(error):
    if error is not None:
        raise error
    return "planned"


CALLS = {
    "function": (message_first(planned), lambda called, error: called(error)),
    "generator": (message_first_while_read(read), lambda called, error: list(called(error))),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("program", [*PROGRAMS, None])
def test_only_an_expected_error_in_a_worker_hides_its_traceback(monkeypatch, call, program):
    """A driver that calls a reader itself keeps its traceback."""
    specification = None if program is None else SimpleNamespace(name=program)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=specification))
    called, run = CALLS[call]
    for error in (*RAISED, *OTHERS):
        monkeypatch.setenv(HIDE_TRACEBACK, "")
        monkeypatch.delenv(HIDE_TRACEBACK)
        with pytest.raises(type(error)) as caught:
            run(called, error)
        assert caught.value is error
        assert (os.environ.get(HIDE_TRACEBACK) == "1") == (PROGRAMS.get(program, False) and error in RAISED), error
    assert run(called, None) == ("planned" if call == "function" else [1, 2])
    assert called.__wrapped__ in (planned, read)


def test_a_generator_is_decorated_as_one():
    with pytest.raises(AssertionError, match="a generator function is expected"):
        errors.message_first_while_read(planned)
