"""Goal: problems that only brokers know reach the verdict on a cluster. Method: a real page, and pages made by hand."""

import json

import pytest
import trio

from moldau.runtime.ports.real import real_environment
from moldau.runtime.telemetry.endpoint import Page, serve_pages
from moldau_cli.operations.reported_problems import ask_for_problems, parse_problems

ROWS = [
    {"kind": "object-store-fails", "detail": "403 Forbidden, AccessDenied"},
    {"kind": "of-a-newer-version", "detail": "?"},
]


def test_known_problems_are_read():
    assert parse_problems(json.dumps(ROWS).encode()) == [("object-store-fails", "403 Forbidden, AccessDenied")]
    assert parse_problems(b"[]") == []


@pytest.mark.parametrize("page", [b"", b"<html>", b"3", b"[3]", b'[{"kind": "object-store-fails"}]'])
def test_other_pages_are_no_problems(page):
    with pytest.raises(ValueError, match=r"."):
        parse_problems(page)


def test_brokers_that_answer_report_their_problems():
    """Broker 2 is of a version without the page."""

    async def main():
        async with trio.open_nursery() as nursery:
            ports = [
                (await nursery.start(serve_pages, real_environment(), "127.0.0.1", 0, pages))[1]
                for pages in ({"/problems": lambda: Page(200, json.dumps(ROWS) + "\n")}, {})
            ]

            found = await ask_for_problems(
                {each: f"127.0.0.1:{port}" for each, port in zip((1, 2), ports, strict=True)}
            )
            nursery.cancel_scope.cancel()
        return found

    (problem,) = trio.run(main)
    assert (problem.kind, problem.subject) == ("object-store-fails", "broker 1")
    assert problem.detail == "403 Forbidden, AccessDenied"
