"""Goal: a broker starts without the clients, and what it loads does not grow unnoticed.

Method: a fresh interpreter that imports the broker, counts modules, and counts the dataclasses that are built: each
compiles half a dozen functions, and together they take a fifth of the import.
"""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import dataclasses, sys
built = 0
process = dataclasses._process_class
def counted(*arguments, **options):
    global built
    built += 1
    return process(*arguments, **options)
dataclasses._process_class = counted
import moldau_broker.server
from moldau_broker.server.client_metrics.manager import client_metrics
assert client_metrics(None, lambda: 0) is not None
print(built, *sys.modules)
"""
CLIENTS = ("moldau.admin", "moldau.blocking", "moldau.producer", "moldau.share", "moldau.aio", "moldau.mirror")
UNUSED = (
    "email",
    "google.protobuf",
    "importlib.metadata",
    "opentelemetry.proto.metrics.v1.metrics_pb2",
    "re2",
    "tomllib",
)
"""Modules that a broker needs for single requests or files only; they took an eighth of its start."""
MODULES_MAX = 569
"""Moldau's own; 543 when this was set, and twelve more for tiered storage that is off: keys, and parts of each log."""
DATACLASSES_MAX = 295
"""287 when this was written."""


def test_a_broker_loads_no_client_and_no_more_than_before() -> None:
    """The package of the consumer loaded the whole client for one function that a broker uses."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    built, *modules = run.stdout.split()
    own = [name for name in modules if name.startswith("moldau")]
    assert [name for name in own if name.startswith(CLIENTS)] == []
    assert "moldau.consumer.consumer" not in own
    assert [name for name in UNUSED if name in modules] == []
    assert "moldau.cluster.client" not in own
    assert len(own) <= MODULES_MAX, len(own)
    assert int(built) <= DATACLASSES_MAX, built
