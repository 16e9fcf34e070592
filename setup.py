"""Builds the one optional extension module; everything else is declared in pyproject.toml.

``moldau.records._codec`` holds the per-record loops in typed Cython. It is optional: on a machine without a compiler
the installation succeeds and the pure-Python twin ``moldau.records._codec_py`` serves instead.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("moldau.records._codec", ["client/moldau/records/_codec.pyx"], optional=True),
    ],
)
