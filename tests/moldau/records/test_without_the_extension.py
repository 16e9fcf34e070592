"""Goal: all that stands on the record loops works without a C compiler.

Method: the tests of records, of the producer's batches and of the leader's checks once more, in a process in which
the extension modules cannot be imported.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SUITES = (
    "tests/moldau/records/test_batch.py",
    "tests/moldau/records/test_codec_contract.py",
    "tests/moldau/client/producer/test_accumulator.py",
    "tests/moldau/client/producer/test_producer.py",
    "tests/moldau_broker/log/partition/test_validator.py",
    "tests/moldau_broker/log/cleaner/test_cleaner.py",
)
PURE = os.environ | {"MOLDAU_PURE_PYTHON": "1"}


def run(*arguments: str) -> str:
    """Runs Python without the extension; returns what it said, and fails with that."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=PURE, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout + done.stderr


def test_the_switch_hides_the_extension() -> None:
    """The suites below would pass with the extension as well, so this is looked at first."""
    script = """
import sys
from moldau.records import IMPLEMENTATION
from moldau.records.cleaning import map_keys
assert IMPLEMENTATION == "python", IMPLEMENTATION
assert map_keys.__module__ == "moldau.records.pure.cleaning", map_keys.__module__
"""
    run("-c", script)
    for value in ("", "0"):
        choice = "from moldau.implementation import choose_implementation as choose; import sys; choose({}); "
        choice += f"choose({{'MOLDAU_PURE_PYTHON': {value!r}}}); assert 'moldau.records._codec' not in sys.modules"
        subprocess.run([sys.executable, "-c", choice], env={**PURE, "MOLDAU_PURE_PYTHON": value}, check=True)


def test_the_twin_is_announced_once() -> None:
    script = """
import logging
from moldau.implementation import announce_implementation
from moldau.runtime.telemetry.log import EventLogger
logging.basicConfig(level="INFO")
for name in "ab":
    announce_implementation(EventLogger(name))
"""
    assert run("-c", script).count("records-in-pure-python") == 1


@pytest.mark.proof
def test_the_suites_pass_without_the_extension() -> None:
    """One process runs all suites, because its start costs more than the tests."""
    said = run("-m", "pytest", "-v", "-n", "0", "-p", "no:cacheprovider", *SUITES)
    assert [suite for suite in SUITES if not re.search(rf"^{suite}::.* PASSED", said, re.MULTILINE)] == []
