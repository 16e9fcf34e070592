"""Replaces the code of one function of a loaded module by that of a mutant.

Tests and other modules hold the function itself, so its code object is replaced in place; nothing is imported again.
"""

from __future__ import annotations

import functools
import importlib
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.mutation.operators import Mutant


class NotSwappable(Exception):
    """The function cannot be found behind its decorators, or its code would need other cells."""


def swap_in(mutant: Mutant) -> None:
    """Makes this process run the mutant.

    Raises:
        NotSwappable: the function is not reachable by its name.
    """
    function = _function(importlib.import_module(mutant.module), mutant.place)
    compiled = compile(mutant.source(), function.__code__.co_filename, "exec", dont_inherit=True)
    changed = _code_of(compiled, mutant.place)
    if changed.co_freevars != function.__code__.co_freevars:
        raise NotSwappable(f"{mutant.place} would need other cells")
    function.__code__ = changed


def _function(module: types.ModuleType, place: str) -> types.FunctionType:
    owner: object = module
    *outer, name = place.split(".")
    for each in outer:
        owner = getattr(owner, each, None)
    found = vars(owner).get(name) if owner is not None else None
    for _ in range(10):
        if isinstance(found, types.FunctionType) and not hasattr(found, "__wrapped__"):
            return found
        if isinstance(found, classmethod | staticmethod):
            found = found.__func__
        elif isinstance(found, property):
            found = found.fget
        elif isinstance(found, functools.cached_property):
            found = found.func
        else:
            found = getattr(found, "__wrapped__", None)
    raise NotSwappable(f"{module.__name__} has no function {place}")


def _code_of(compiled: types.CodeType, place: str) -> types.CodeType:
    """Returns the code object of a qualified name; of several definitions the last one holds, as when a module runs."""
    found = [
        each
        for outer in _codes(compiled)
        for each in outer.co_consts
        if isinstance(each, types.CodeType) and each.co_qualname == place
    ]
    if not found:
        raise NotSwappable(f"no code for {place}")
    return found[-1]


def _codes(compiled: types.CodeType) -> list[types.CodeType]:
    inner = [each for each in compiled.co_consts if isinstance(each, types.CodeType)]
    return [compiled, *(code for each in inner for code in _codes(each))]
