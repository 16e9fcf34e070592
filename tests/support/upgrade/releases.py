"""Builds the wheel of the release before this one, and installs it beside the working copy.

The release is a commit of this repository's own history. Its wheel goes into a virtual environment of its own, which
finds the libraries that it needs in the environment of the tests. The environment is kept between test runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Revision:
    """A release in the history."""

    version: str
    """The version in its wheel."""
    commit: str


PREVIOUS: Final = Revision("0.2.0.dev0", "739d8050cb7a978101db90be260f7f9a22ca9289")
"""The release before this one: ``metadata.version`` 2 and ``transaction.version`` 1 are the highest levels it knows."""
FIRST: Final = Revision("0.1.0", "9bb1e356536f72018d26ea7f34fde72b39c0c2f5")
"""The last commit of 0.1.0, whose controllers speak another protocol to each other."""

BUILD_S: Final = 540
NO_REGISTRY: Final = ("No matching distribution found", "NewConnectionError", "ProxyError", "ReadTimeoutError")


class ReleaseAbsentError(Exception):
    """The release cannot be built on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Release:
    """An installed version of Moldau."""

    version: str
    python: Path
    """The interpreter in whose environment the version is installed."""

    @property
    def command(self) -> list[str]:
        """The words that begin each command of this version."""
        return [str(self.python), "-m", "moldau_cli"]


def current_release() -> Release:
    """Returns the working copy."""
    from moldau.version import VERSION

    return Release(VERSION, Path(sys.executable))


def install(revision: Revision, kept: Path) -> Release:
    """Returns a release of the history, installed below the directory ``kept``.

    Raises:
        ReleaseAbsentError: the history lacks its commit, this Python is too new for it, or its build tools cannot be
            downloaded.
    """
    if revision is FIRST and sys.version_info >= (3, 12):
        raise ReleaseAbsentError(f"release {revision.version} runs on Python 3.11 only")
    home = kept / revision.commit[:12]
    release = Release(revision.version, home / "venv" / "bin" / "python")
    done = home / "installed"
    if not done.exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _install(_build(_sources(revision, home), revision, home), home, release)
        done.touch()
    return release


def _sources(revision: Revision, home: Path) -> Path:
    """Extracts the release's files from the history."""
    archive, sources = home / "sources.tar", home / "sources"
    git = ["git", "-C", str(ROOT), "archive", "--output", str(archive), revision.commit]
    try:
        found = subprocess.run(git, capture_output=True, text=True, timeout=BUILD_S, check=False)
    except FileNotFoundError as error:
        raise ReleaseAbsentError("git is not installed") from error
    if found.returncode != 0:
        reason = (found.stderr.strip().splitlines() or ["git archive failed"])[-1]
        raise ReleaseAbsentError(f"the history has no commit {revision.commit[:12]} ({revision.version}): {reason}")
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            packed.extractall(sources, filter="data")
        else:
            packed.extractall(sources)
    return sources


def _build(sources: Path, revision: Revision, home: Path) -> Path:
    """Builds the wheel as its author did, in an isolated environment."""
    _pip("wheel", "--no-deps", "--wheel-dir", str(home), str(sources), cwd=home)
    (wheel,) = home.glob(f"moldau-{revision.version}-*.whl")
    return wheel


def _install(wheel: Path, home: Path, release: Release) -> None:
    venv.create(home / "venv", with_pip=False)
    asked = [str(release.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    (purelib,) = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    _pip("install", "--no-deps", "--no-index", "--target", purelib, str(wheel), cwd=home)
    # A path from a .pth file is searched for packages, but its own .pth files, such as the one of the working copy's
    # editable installation, are not read. The release's own packages come first.
    libraries = subprocess.run([sys.executable, *asked[1:]], capture_output=True, text=True, check=True).stdout.strip()
    (Path(purelib) / "libraries-of-the-tests.pth").write_text(f"{libraries}\n")
    shown = subprocess.run(
        [
            release.python,
            "-c",
            "import importlib.metadata, moldau; print(importlib.metadata.version('moldau')); print(moldau.__file__)",
        ],
        cwd=home,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert shown[0] == release.version, shown
    assert Path(shown[1]).is_relative_to(purelib), shown


def clean_environment() -> dict[str, str]:
    """The environment without variables that lead Python or a node to the working copy."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MOLDAU_"))}


def _pip(*arguments: str, cwd: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=clean_environment(), capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    if done.returncode != 0:
        said = f"{done.stdout}\n{done.stderr}".strip()
        if any(words in said for words in NO_REGISTRY):
            raise ReleaseAbsentError(f"the build tools of the release cannot be downloaded: {said[-200:]}")
        raise AssertionError(f"{' '.join(command)}\n{said[-3000:]}")
