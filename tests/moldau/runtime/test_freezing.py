"""The names that PyInstaller learns of the client; ``tests/packaging`` makes a real application in one file."""

import importlib.metadata
import pkgutil
import runpy
from pathlib import Path

import moldau
from moldau.runtime.freezing import hook_directories, module_names


def test_the_hook_names_each_module_of_the_client():
    """pkgutil knows packages by import; the hook reads files, and must see the same."""
    seen = {"moldau", *(found.name for found in pkgutil.walk_packages(moldau.__path__, "moldau."))}
    hidden = runpy.run_path(str(Path(hook_directories()[0]) / "hook-moldau.py"))["hiddenimports"]
    assert {"moldau.protocol.messages.metadata", "moldau.aio.producer"} <= seen
    assert {name for name in seen if "-" not in name} == set(module_names())
    assert set(hidden) == {*module_names(), "crc32c"}


def test_pyinstaller_finds_the_hook_by_the_entry_point():
    (entry,) = (
        entry
        for entry in importlib.metadata.distribution("moldau").entry_points
        if entry.group == "pyinstaller40" and entry.name == "hook-dirs"
    )
    assert entry.load()() == hook_directories()
