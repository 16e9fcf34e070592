"""Builds the optional extension modules; everything else is declared in pyproject.toml.

``moldau.records._codec`` holds the per-record loops in typed Cython, ``moldau.records._cleaning`` those of the log's
cleaner. ``moldau.records._plain`` and ``moldau.protocol.hot._wire`` are short cuts of the broker for usual batches and
requests. They are optional: on a machine without a compiler the installation succeeds and the pure-Python twins (in
``moldau.records.pure`` and ``moldau.protocol.hot.pure``) serve instead.
"""

from setuptools import Extension, setup

RECORDS = "client/moldau/records"
COMPILER_ARGUMENTS = ["-g0"]
"""No debug information, which Python's own flags ask for: generated C has more of it than code, in half of the time."""

setup(
    ext_modules=[
        Extension(
            "moldau.protocol.hot._wire",
            ["client/moldau/protocol/hot/_wire.pyx"],
            extra_compile_args=COMPILER_ARGUMENTS,
            optional=True,
        ),
        *(
            Extension(
                f"moldau.records.{name}",
                [f"{RECORDS}/{name}.pyx"],
                depends=[f"{RECORDS}/{part}" for part in ("_wire.pxd", *parts)],
                extra_compile_args=COMPILER_ARGUMENTS,
                optional=True,
            )
            for name, parts in (
                ("_codec", ["_codec_append.pxi", "_codec_columns.pxi", "_codec_rows.pxi", "_codec_walk.pxi"]),
                ("_cleaning", []),
                ("_plain", []),
            )
        ),
    ],
)
