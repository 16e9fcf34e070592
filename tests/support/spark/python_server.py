"""The process that forks Spark's Python processes for ``support.spark.forked_python``.

    python python_server.py SOCKET

Its standard input is a pipe of the process that started it; both end together. It imports libraries, but nothing of
Moldau: what a task or a data source imports of that, it imports as in an interpreter of its own.

``support.forking`` describes requests; their object has ``module``, ``words``, ``directory`` and ``environment``.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

IMPORTED = (
    "cramjam",
    "crc32c",
    "fastavro",
    "fastjsonschema",
    "google.protobuf",
    "lz4.frame",
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.conversion",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "trio",
)
TESTS = Path(__file__).resolve().parents[2]
OWN = ("moldau", "pyspark_moldau")


def main(path: str) -> None:
    """Serves until the starter ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what Spark's JVM starts
    serve = _loop()
    for name in IMPORTED:
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith(OWN)], "a task imports Moldau's modules itself"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    serve(listener, 0, _end_with)


def _loop() -> Callable[[socket.socket, int, Callable[[dict[str, Any]], NoReturn]], None]:
    """Returns ``support.forking.serve``; a task finds no module of the tests that an interpreter would not find."""
    sys.path.insert(0, str(TESTS))
    from support.forking import serve

    del sys.path[0], sys.modules["support.forking"], sys.modules["support"]
    return serve


def _end_with(request: dict[str, Any]) -> NoReturn:
    """Runs the module, and ends this process; libraries' own ends would wait for threads that a fork does not have."""
    code: object = 0
    try:
        _become(request)
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - this process has no other caller
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _become(request: dict[str, Any]) -> None:
    """Runs the module in this new process, as ``python -m`` does."""
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    path = request["environment"].get("PYTHONPATH", "")
    sys.path[:0] = [request["directory"], *filter(None, path.split(os.pathsep))]
    sys.argv = ["-m", *request["words"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
