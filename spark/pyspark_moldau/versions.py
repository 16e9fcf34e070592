"""Which releases of PySpark the source works with."""

from __future__ import annotations

import re
from typing import Final

NEEDED: Final = (4, 2)
"""The first release whose streaming readers get the start offset and a limit."""


class UnsupportedSparkError(RuntimeError):
    """The installed PySpark is too old for the data source."""


def is_supported() -> bool:
    """Returns whether the installed PySpark is recent enough."""
    import pyspark

    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    return found is not None and (int(found.group(1)), int(found.group(2))) >= NEEDED


def remedy() -> str:
    """Returns what is wrong with the installed PySpark, and what to do."""
    import pyspark

    needed = ".".join(map(str, NEEDED))
    return (
        f"format moldau needs PySpark {needed} or later, and {pyspark.__version__} is installed: "
        f"pip install 'pyspark>={needed},<5'"
    )
