"""Goal: a node warns about each file that holds secrets and that others may read, and about no other file.

Method: secrets as text, as references of each kind, and both in one value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau.runtime.config.providers import files_of_secrets, resolve
from support.sasl import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

FILE = "node.properties"


@pytest.mark.parametrize(
    ("value", "places"),
    [
        (None, []),
        ("", []),
        (5, []),
        ("s3cret", [FILE]),
        ("${env:PASSWORD}", []),
        ("${file:/etc/s.properties:p}", ["/etc/s.properties"]),
        ("${file:C:/s.properties:p}", ["C:/s.properties"]),
        ("${dir:/run/secrets:p}", ["/run/secrets/p"]),
        ("${dir:/run/secrets:p}${dir:/run/secrets:q}${dir:/run/secrets:p}", ["/run/secrets/p", "/run/secrets/q"]),
        ("x ${file:/a:p} y ${env:P}", ["/a"]),
        ("${unknown:x}", [FILE]),
        (f'{PLAIN} username="a" password="${{file:/a:p}}" user_a="${{env:A}}";', ["/a"]),
        (f'{PLAIN} username="a" password="${{file:/a:p}}" user_a="s3cret";', ["/a", FILE]),
        (f'{PLAIN} username="${{file:/a:u}}" password="s3cret";', ["/a", FILE]),
        (f'{PLAIN} username="a" password="x${{env:P}}";', []),
        (f'{PLAIN} clientId="${{env:ID}}" clientSecret="s3cret";', [FILE]),
        (f'{PLAIN} username="a" password="" user_b="${{env:P}}";', []),
        (f'{PLAIN} username="a" password="${{env:P}}', []),
    ],
)
def test_files_of_secrets_are_found(value: object, places: list[str]) -> None:
    given = {"ssl.key.password": value, "other": "${file:/not/secret:x}"}
    assert files_of_secrets(given, FILE, ["ssl.key.password", "absent"]) == places


def test_each_file_is_named_once() -> None:
    given = {"a": "one", "b": "${file:/s:b}", "c": "${file:/s:c}", "d": "two"}
    assert files_of_secrets(given, FILE, list(given)) == [FILE, "/s"]


def test_references_are_replaced_once_and_by_text() -> None:
    """A secret may look like a reference, or like an escape of the replacement."""
    environ = {"A": "${env:B}", "B": r"\1\g<0>", "C": ""}
    given = {"a": "${env:A}", "b": "<${env:B}|${env:C}>", "c": ["${env:B}", "x"], "d": "$ {env:A}", "e": True}
    assert resolve(given, environ) == {
        "a": "${env:B}",
        "b": r"<\1\g<0>|>",
        "c": [r"\1\g<0>", "x"],
        "d": "$ {env:A}",
        "e": True,
    }


def test_a_mounted_secret_loses_the_ends_of_lines_alone(tmp_path: Path) -> None:
    """A password may begin or end with blanks; editors and ``kubectl`` add ends of lines."""
    (tmp_path / "secret").write_bytes(b" \thush \r\n\n")
    assert resolve({"a": f"${{dir:{tmp_path}:secret}}"}, {}) == {"a": " \thush "}
