"""Builds the optional extension modules; everything else is declared in pyproject.toml.

``moldau.records._codec`` holds the per-record loops in typed Cython, ``moldau.records._cleaning`` those of the log's
cleaner. They are optional: on a machine without a compiler the installation succeeds and the pure-Python twins
``_codec_py`` and ``_cleaning_py`` serve instead.
"""

from setuptools import Extension, setup

RECORDS = "client/moldau/records"

setup(
    ext_modules=[
        Extension(
            f"moldau.records.{name}",
            [f"{RECORDS}/{name}.pyx"],
            depends=[f"{RECORDS}/{part}" for part in ("_wire.pxd", *parts)],
            optional=True,
        )
        for name, parts in (
            ("_codec", ["_codec_append.pxi", "_codec_columns.pxi", "_codec_rows.pxi", "_codec_walk.pxi"]),
            ("_cleaning", []),
        )
    ],
)
