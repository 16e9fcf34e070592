"""Spark sessions for Moldau, the Java that they run on, and the archive that their workers need.

``python -m pyspark_moldau.session`` prints the home of the Java that a session would use.
"""

from pyspark_moldau.session.sessions import (
    CLUSTER_DEFAULTS,
    DEFAULTS,
    cluster_session,
    local_session,
    prepare,
    start_jvm,
)
from pyspark_moldau.versions import UnsupportedSparkError

__all__ = [
    "CLUSTER_DEFAULTS",
    "DEFAULTS",
    "UnsupportedSparkError",
    "cluster_session",
    "local_session",
    "prepare",
    "start_jvm",
]
