"""Prints the sources whose types can differ between Linux and macOS, for mypy's second run.

Most modules have the same types on every platform, so checking them twice finds nothing new. Types differ where a
module reads ``sys.platform``, or uses a module of the standard library or of trio whose stubs do. The first run of mypy
covers all files, for Linux.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import mypy

ROOT = Path(__file__).parents[2]
STUBS = Path(mypy.__file__).parent / "typeshed" / "stdlib"
BRANCH = re.compile(r"sys\.platform\b.*(?:linux|darwin)")
NAMES = {
    "sys": re.compile(r"\bsys\.platform\b"),
    "time": re.compile(r"\bCLOCK_|\bclock_"),
    "trio.lowlevel": re.compile(r"kqueue|kevent|epoll|FdStream"),
    "trio.socket": re.compile(r"\btrio\.socket\b|from trio import .*\bsocket\b"),
}
"""Modules that differ in these names only, and modules of trio that differ."""
LINUX_ONLY = ("benchmarks",)
"""Folders whose programs pin processes to cores, and poll and sync as Linux does."""
IMPORT = re.compile(r"^\s*(?:import (?P<module>[\w.]+)|from (?P<package>[\w.]+) import )", re.MULTILINE)


def differing_modules() -> frozenset[str]:
    """Returns the modules of the standard library whose stubs have a branch for Linux or macOS."""
    return frozenset(
        ".".join(path.relative_to(STUBS).with_suffix("").parts).removesuffix(".__init__")
        for path in STUBS.rglob("*.pyi")
        if BRANCH.search(path.read_text(encoding="utf-8"))
    )


def is_platform_dependent(text: str, differing: frozenset[str]) -> bool:
    """Returns whether the types of a source can differ between platforms."""
    used = {found["module"] or found["package"] for found in IMPORT.finditer(text)}
    if "trio" in used:
        used |= {"trio.lowlevel", "trio.socket"}
    return bool(used & (differing - NAMES.keys())) or any(NAMES[name].search(text) for name in used & NAMES.keys())


def platform_files() -> list[str]:
    """Returns the paths of all such sources below the folders that mypy checks, except those for Linux alone."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    differing = differing_modules()
    return [
        str(path.relative_to(ROOT))
        for folder in settings["tool"]["mypy"]["files"]
        if folder not in LINUX_ONLY
        for path in sorted((ROOT / folder).rglob("*.py"))
        if is_platform_dependent(path.read_text(encoding="utf-8"), differing)
    ]


if __name__ == "__main__":
    print("\n".join(platform_files()))
