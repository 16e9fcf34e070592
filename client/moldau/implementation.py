"""The choice between the two implementations of the record loops.

``moldau.records`` has its loops twice: in typed Cython, and in plain Python for installations without a C compiler.
``MOLDAU_PURE_PYTHON=1`` in the environment selects plain Python even if the extension is installed, for tests. Moldau
reads it once, when the package ``moldau`` is imported.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.telemetry.log import EventLogger

PURE_PYTHON_VARIABLE = "MOLDAU_PURE_PYTHON"
EXTENSIONS = (
    "moldau.records._codec",
    "moldau.records._cleaning",
    "moldau.records._plain",
    "moldau.protocol.hot._wire",
)

_announced = False


def choose_implementation(environ: Mapping[str, str] = os.environ) -> None:
    """Hides the extension modules if ``environ`` asks for it; call it before any import of them."""
    if environ.get(PURE_PYTHON_VARIABLE, "0") in ("", "0"):
        return
    for name in EXTENSIONS:
        # None in sys.modules makes the import raise ModuleNotFoundError.
        sys.modules[name] = None  # type: ignore[assignment]


def announce_implementation(logger: EventLogger) -> None:
    """Warns once per process if the plain Python loops are in use: they are ten to a hundred times slower."""
    global _announced
    from moldau.records import IMPLEMENTATION

    if _announced or IMPLEMENTATION != "python":
        return
    _announced = True
    logger.warning(
        "records-in-pure-python",
        advice=f"install a C compiler and install moldau again, or unset {PURE_PYTHON_VARIABLE}: records are slow so",
    )
