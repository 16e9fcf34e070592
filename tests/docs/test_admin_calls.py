"""Goal: the table of admin calls is complete. Method: it is compared with the class, and with the served APIs."""

import inspect

import moldau
from moldau_broker.server.admin_calls import APIS, METHODS, OWN, UNSUPPORTED, calls_of
from moldau_broker.server.handlers.apis import ABSENT_APIS


def test_every_call_has_its_row():
    named = {call for method in METHODS for call in calls_of(method)}
    public = {name for name, _ in inspect.getmembers(moldau.Admin, inspect.isfunction) if not name.startswith("_")}
    assert named | set(OWN) == public


def test_a_method_without_a_call_needs_an_absent_api():
    absent = [method for method in METHODS if not calls_of(method) and method not in {"metrics", *UNSUPPORTED}]
    assert [method for method in absent if APIS.get(method) not in ABSENT_APIS] == []
