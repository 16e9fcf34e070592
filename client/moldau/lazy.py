"""Packages that load their names at the first use (PEP 562), so that a program loads only what it needs."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns the functions ``__getattr__`` and ``__dir__`` of a package.

    ``homes`` names the module of each lazy name, below the package. A name is loaded once; ``dir`` lists the names of
    ``__all__``, also those that are not loaded yet, and the package's own.
    """
    module = sys.modules[package]

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home}"), name)
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        return sorted({*module.__all__, *(name for name in vars(module) if name.startswith("__"))})

    return load, names
