"""How other interpreters are found for ``make test-pythons``: one that is missing is skipped with its reason."""

import os
import sys

from support import other_pythons


def interpreter(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_is_not_there_is_skipped_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert other_pythons.find("3.99") == (None, f"no python3.99 on the PATH, nor below {tmp_path}/versions")


def test_a_shim_that_does_not_run_is_passed_over(tmp_path, monkeypatch):
    """The shims of pyenv fail for versions that are not selected."""
    shim = interpreter(tmp_path / "shims" / "python3.99", "echo not selected >&2; exit 127")
    monkeypatch.setenv("PATH", f"{shim.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert other_pythons.find("3.99") == (None, f"{shim} does not run: not selected")
    real = interpreter(tmp_path / "versions" / "3.99.1" / "bin" / "python3.99", "echo 3.99")
    assert other_pythons.find("3.99") == (real, "")


def test_the_present_python_is_found():
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found, reason = other_pythons.find(version)
    assert found is not None, reason
