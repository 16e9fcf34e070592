"""docs/config.md is generated: it must be what the declarations say now."""

from pathlib import Path

from moldau.runtime.config import BROKER_CONFIG, TOPIC_CONFIG
from moldau.runtime.config.docs import render

DOCUMENT = Path(__file__).parents[3] / "docs" / "config.md"


def test_the_document_is_up_to_date():
    assert DOCUMENT.read_text(encoding="utf-8") == render(), (
        "run: python -m moldau.runtime.config.docs > docs/config.md"
    )


def test_every_key_is_told_once_with_its_default():
    text = render()
    for schema in (BROKER_CONFIG, TOPIC_CONFIG):
        for name in schema.keys:
            assert f"| `{name}` |" in text
    assert "| `broker.session.grace.ms` | `250` | an integer from 0 to 2147483647 | *Moldau.* " in text
