"""Goal: the table of admin calls is complete. Method: it is compared with the classes, and with the served APIs."""

import inspect
import re
from pathlib import Path

import moldau
from moldau_broker.server.handlers.apis import ABSENT_APIS

PAGE = Path(__file__).parents[2] / "docs" / "admin-calls.md"
OWN = {"end_transaction"}
API_OF = {
    "describeShareGroups": "ShareGroupDescribe",
    "alterShareGroupOffsets": "AlterShareGroupOffsets",
    "deleteShareGroupOffsets": "DeleteShareGroupOffsets",
    "listShareGroupOffsets": "DescribeShareGroupOffsets",
    "describeStreamsGroups": "StreamsGroupDescribe",
    "clientInstanceId": "GetTelemetrySubscriptions",
}
"""The API behind each absent method that has one of its own."""


def rows():
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            method, calls, note = (cell.strip() for cell in line.strip("|").split("|"))
            yield method.strip("`"), re.findall(r"`(\w+)`", calls), note


def test_every_call_has_its_row():
    named = {call for _, calls, _ in rows() for call in calls}
    public = {name for name, _ in inspect.getmembers(moldau.Admin, inspect.isfunction) if not name.startswith("_")}
    assert named | OWN == public


def test_absent_methods_say_why_and_are_absent():
    absent = {method: note for method, calls, note in rows() if not calls}
    assert all(absent.values())
    assert set(API_OF.values()) <= ABSENT_APIS.keys()
    assert API_OF.keys() <= absent.keys()
