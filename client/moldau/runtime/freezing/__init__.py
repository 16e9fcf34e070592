"""All that PyInstaller must know to put an application with Moldau's clients into one file.

PyInstaller reads ``import`` statements. Moldau loads most of its modules by name, at the first use
(``moldau.lazy``, the messages of ``moldau.protocol.api``), and so they would be missing from the file. PyInstaller
finds this package by the entry point ``pyinstaller40`` and reads its hook (PyInstaller's manual, "Providing PyInstaller
hooks with your package").
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["hook_directories", "module_names"]


def hook_directories() -> list[str]:
    """The directory with the file ``hook-moldau.py``."""
    return [str(Path(__file__).parent)]


def module_names() -> list[str]:
    """All modules of the package ``moldau``, in Python and compiled, with their full names."""
    root = Path(__file__).parents[2]
    names = set()
    for path in root.rglob("*"):
        if path.suffix not in {".py", ".so", ".pyd"} or not path.name.split(".")[0].isidentifier():
            continue  # a hook is no module
        parts = [*path.relative_to(root.parent).parts[:-1], path.name.split(".")[0]]
        names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(names)
