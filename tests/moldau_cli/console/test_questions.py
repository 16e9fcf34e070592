"""Goal: each parameter of a page's question reaches what it names, and each error becomes the right status.

Method: questions whose answers are the arguments that the functions behind them were given.
"""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.admin import AdminError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.console import pages
from moldau_cli.console.app import problem
from moldau_cli.console.pages import QUESTIONS, TEXT_MAX, Question
from moldau_cli.console.records import Search
from moldau_cli.console.sessions import LoginError
from moldau_jepsen.launcher import LauncherError


def question(**parameters: str) -> Question:
    identity: Any = SimpleNamespace(admin="admin", quorum_admin="quorum", requester="requester", rates="rates")
    return Question(identity=identity, parameters=parameters, local=None, avro="avro")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "default", "number"),
    [("7", None, 7), ("-7", 3, -7), ("0", 3, 0), (None, 3, 3), (None, 0, 0), (" 5 ", None, 5)],
)
def test_numbers_are_read(given: str | None, default: int | None, number: int) -> None:
    asked = question() if given is None else question(n=given)
    assert asked.number("n", default) == number


@pytest.mark.parametrize(
    ("given", "words"),
    [(None, "the parameter n is missing"), ("x", "n: expected a whole number, not 'x'"), ("", "expected a whole")],
)
def test_what_is_no_number_is_named(given: str | None, words: str) -> None:
    asked = question() if given is None else question(n=given)
    with pytest.raises(ValueError, match=words):
        asked.number("n")


def test_texts_have_a_default_and_a_bound() -> None:
    assert question(t="").text("t", "x") == "", "an empty text was given"
    assert question().text("t", "") == ""
    assert question(t="a" * TEXT_MAX).text("t") == "a" * TEXT_MAX
    with pytest.raises(ValueError, match=f"t has {TEXT_MAX + 1} characters; at most {TEXT_MAX} are taken"):
        question(t="a" * (TEXT_MAX + 1)).text("t")
    with pytest.raises(ValueError, match="the parameter t is missing"):
        question().text("t")
    with pytest.raises(LookupError, match="start it with --dir"):
        question().local_cluster()


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({"topic": "t"}, {}),
        ({"topic": "t", "partition": ""}, {}),
        ({"topic": "t", "partition": "0"}, {"partition": 0}),
        ({"topic": "t", "partition": "3", "origin": "before", "value": "9"}, {"partition": 3, "origin": "before"}),
        ({"topic": "t", "origin": "time", "value": "9", "limit": "7"}, {"origin": "time", "limit": 7}),
        ({"topic": "t", "key": "k", "contains": "c"}, {"key": "k", "contains": "c"}),
        ({"topic": "t", "committed": "1"}, {"committed_only": True}),
        ({"topic": "t", "committed": "0"}, {}),
    ],
)
def test_a_search_has_all_that_was_asked(
    parameters: dict[str, str], wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def browse(identity: Any, search: Search, avro: Any) -> Any:
        await trio.lowlevel.checkpoint()
        assert (identity.admin, avro) == ("admin", "avro")
        return asdict(search)

    monkeypatch.setattr(pages, "browse", browse)
    usual = asdict(Search(topic="t")) | {"value": int(parameters.get("value", "0"))}
    assert trio.run(QUESTIONS["messages"], question(**parameters)) == {**usual, **wanted}


async def said(*arguments: Any, **named: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return [*arguments, *named.items()]


@pytest.mark.parametrize(
    ("name", "parameters", "module", "function", "arguments"),
    [
        ("message", {"topic": "t", "partition": "2", "offset": "7"}, "", "whole_record", ["t", 2, 7, "avro"]),
        ("topics", {}, "topics", "topics", ["rates", "", ("internal", False)]),
        ("topics", {"filter": "f", "internal": "1"}, "topics", "topics", ["rates", "f", ("internal", True)]),
        ("topic", {"name": "t"}, "topics", "topic", ["requester", "rates", "t"]),
        ("groups", {"filter": "f"}, "groups", "groups", ["f"]),
        ("group", {"name": "g"}, "groups", "group", ["g"]),
        ("acls", {"filter": "f"}, "rights", "acls", ["f"]),
        ("quotas", {"filter": "f"}, "rights", "quotas", ["f"]),
        ("configuration", {"kind": "broker"}, "cluster", "configuration", ["broker", ""]),
        ("configuration", {"kind": "topic", "name": "t"}, "cluster", "configuration", ["topic", "t"]),
        ("brokers", {}, "cluster", "brokers", ["quorum"]),
        ("controllers", {}, "cluster", "controllers", []),
        ("configurable", {}, "cluster", "configurable", []),
    ],
)
def test_each_question_hands_its_parameters_on(
    name: str,
    parameters: dict[str, str],
    module: str,
    function: str,
    arguments: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Questions to a controller have connections of their own: without one, these answer nothing else."""
    monkeypatch.setattr(getattr(pages, module) if module else pages, function, said)
    first, *rest = trio.run(QUESTIONS[name], question(**parameters))
    if name != "message":
        assert first == ("quorum" if name in ("acls", "quotas", "controllers") else "admin")
    assert rest == arguments


def statuses(code: ErrorCode) -> int:
    if code.name.endswith("_AUTHORIZATION_FAILED") and code is not ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED:
        return 403
    return {
        **dict.fromkeys(("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID", "GROUP_ID_NOT_FOUND"), 404),
        **dict.fromkeys(("INVALID_TOPIC_EXCEPTION", "INVALID_REQUEST", "INVALID_GROUP_ID", "MESSAGE_TOO_LARGE"), 400),
        "REQUEST_TIMED_OUT": 504,
    }.get(code.name, 502)


@pytest.mark.parametrize("code", [each for each in ErrorCode if each is not ErrorCode.NONE], ids=lambda each: each.name)
def test_each_code_of_kafka_has_a_status(code: ErrorCode) -> None:
    """A page tells what is not allowed, not there, asked wrongly, late, and refused otherwise."""
    status, text = problem(KafkaError(code, "because"))
    assert status == statuses(code)
    assert "because" in text
    assert (code.name in text) is (status in (502, 504)), "only others need the code"
    if status not in (502, 504):  # as the failure of one of several, too
        others = {"a": KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "x"), "b": KafkaError(code, "because")}
        assert problem(AdminError(others))[0] == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (trio.TooSlowError(), 504),
        (LoginError("no"), 401),
        (LookupError("no"), 404),
        (LauncherError("no"), 409),
        (ValueError("no"), 400),
    ],
)
def test_other_errors_have_a_status(error: Exception, status: int) -> None:
    found, text = problem(error)
    assert found == status
    assert text == ("the cluster did not answer in time" if status == 504 else "no")


@pytest.mark.parametrize("error", [KeyError("x"), IndexError("x"), TypeError("x"), RuntimeError("x")])
def test_a_defect_has_none(error: Exception) -> None:
    """It is raised, and its traceback is on the console's standard error."""
    with pytest.raises(type(error)) as raised:
        problem(error)
    assert raised.value is error
