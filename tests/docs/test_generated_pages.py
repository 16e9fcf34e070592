"""Goal: generated pages are what the code says now. Method: they are generated again, and compared."""

import re
from pathlib import Path

import pytest

from moldau.runtime.config import BROKER_CONFIG, GROUP_CONFIG, TOPIC_CONFIG
from moldau.runtime.config import docs as config_docs
from moldau_broker.server import admin_calls, compat
from moldau_broker.server.handlers.apis import ABSENT_APIS, OLDER_VERSIONS
from moldau_cli import reference
from moldau_cli.application import application
from moldau_cli.nodes.server_words import USAGE
from support import rooms
from support.answers import differences as answers

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "config.md": (config_docs.render, "python -m moldau.runtime.config.docs > docs/config.md"),
    "cli.md": (reference.document, "python -m moldau_cli.reference > docs/cli.md"),
    "admin-calls.md": (admin_calls.document, "python -m moldau_broker.server.admin_calls > docs/admin-calls.md"),
    "compat.md": (compat.document, "python -m moldau_broker.server.compat > docs/compat.md"),
    "proof/same-answers.md": (
        answers.page,
        "PYTHONPATH=tests python -m support.answers.differences > docs/proof/same-answers.md",
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name):
    generate, command = PAGES[name]
    assert (DOCS / name).read_text(encoding="utf-8") == generate(), f"run: {command}"


def test_the_rooms_of_the_architecture_are_up_to_date():
    assert rooms.PAGE.read_text(encoding="utf-8") == rooms.page(), "run: PYTHONPATH=tests python -m support.rooms"


def test_the_page_of_commands_has_defaults_and_names_as_the_help():
    """It left out a default of 1, those of pairs of flags, and named arguments as the code does."""
    rows = reference.document().splitlines()
    assert "| `--first`, `--from` `NUMBER` | First of the seeds. Default: `1`. |" in rows
    assert any(row.startswith("| `--elect`, `--no-elect`") and row.endswith("Default: `--elect`. |") for row in rows)
    assert any(row.startswith("| `--internal`, ") and row.endswith("Default: `--exclude-internal`. |") for row in rows)
    assert "| `PLAN` | File written by plan. Required. |" in rows


def test_the_page_has_the_options_of_a_node():
    """A node reads its words itself, without the library that the page is made from."""
    described = {name for parameter in application.commands["server"].params for name in parameter.opts}
    assert described - {"config"} == set(re.findall(r"--[a-z-]+", USAGE))


def test_every_key_stands_once_with_its_default():
    text = config_docs.render()
    for schema in (BROKER_CONFIG, TOPIC_CONFIG):
        for name in schema.keys:
            assert f"| `{name}` |" in text
    assert "| `broker.session.grace.ms` | `250` | an integer from 0 to 2147483647 | *Moldau.* " in text


def test_keys_of_groups_say_whether_they_have_effect():
    """Those that brokers read must not be shown as being without effect."""
    rows = {line.split("`")[1]: line for line in config_docs.render().splitlines() if line.startswith("| `")}
    for key in GROUP_CONFIG.keys.values():
        assert ("without effect" in rows[key.name]) is not key.has_effect, key.name
    assert GROUP_CONFIG.keys["share.delivery.count.limit"].has_effect
    assert GROUP_CONFIG.keys["share.assignment.interval.ms"].has_effect


def test_reasons_name_absent_apis_only():
    """A reason that is no longer shown belongs to an API that is served by now."""
    text = compat.document()
    shown = {line.split(" | ")[1] for line in text.splitlines() if line.endswith(" |") and not line.endswith("|  |")}
    assert set(ABSENT_APIS) <= shown


def test_notes_on_versions_name_older_ones_only():
    """A note goes when Kafka's newest version is served; the page is not generated while one is missing."""
    served = compat.served_versions()
    older = {
        api.name
        for api in compat.kafka_apis()
        if any(last < api.last_version for last in compat.lasts(served, api)) or api.name in compat.UNSTABLE
    }
    assert set(OLDER_VERSIONS) == older


def test_no_version_is_advertised_that_kafka_lacks():
    """Produce is the exception: librdkafka asks for version 0 before it compresses."""
    known = {api.key: api for api in compat.kafka_apis()}
    for apis in compat.served_versions().values():
        for key, (first, last) in apis.items():
            assert last <= known[key].last_version
            assert first >= known[key].first_version or known[key].name == "Produce"
