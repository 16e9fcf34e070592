"""Goal: processes that start Spark at the same time do not disturb each other's Java.

Method: a hand-made Java home that needs a wrapper; concurrent processes that create the wrapper and run it.
"""

import os
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyspark_moldau.session import java

ECHO = '#!/bin/sh\necho {name} "$@"\n'


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """Makes ``find_java`` find a Java of the given name that needs the wrapper."""

    def install(name: str) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True, exist_ok=True)
        program = home / "bin" / "java"
        program.write_text(ECHO.format(name=name))
        program.chmod(0o755)
        (home / "release").write_text('JAVA_VERSION="21.0.1"\n')
        monkeypatch.setattr(java, "find_java", lambda: java.Java(home=home, version=21, wrapped=True))
        return home

    return install


def run(home: Path, *words: str) -> str:
    done = subprocess.run([str(home / "bin" / "java"), *words], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_the_wrapper_removes_one_flag_and_is_never_rewritten(packaged, tmp_path):
    """The wrapper removes one flag, and an existing wrapper is not written again."""
    packaged("first")
    home = java.java_home(tmp_path / "wrapper")
    assert java.java_version(home) == 21
    assert run(home, "-x", java.VECTOR_FLAG, "a b") == "first -x a b\n"
    before = (home / "bin" / "java").stat()
    modes = [stat.S_IMODE((home / name).stat().st_mode) for name in ("bin/java", "release")]
    assert modes == [0o755, 0o644], "no other user can write to it"
    assert java.java_home(tmp_path / "wrapper") == home
    assert (home / "bin" / "java").stat().st_mtime_ns == before.st_mtime_ns
    packaged("second")
    other = java.java_home(tmp_path / "wrapper")
    assert run(other, "-x") == "second -x\n"
    assert run(home, "-x") == "first -x\n"
    for made in (home, other):
        assert sorted(path.name for path in made.rglob("*")) == ["bin", "java", "release"]


def test_an_update_of_java_gets_a_wrapper_of_its_own(packaged, tmp_path):
    """Its folder stays, and a session that runs goes on with the files that it started from."""
    installed = packaged("same")
    former = java.java_home(tmp_path / "wrapper")
    (installed / "release").write_text('JAVA_VERSION="25.0.1"\n')
    present = java.java_home(tmp_path / "wrapper")
    assert present != former
    assert (java.java_version(former), java.java_version(present)) == (21, 25)


def test_concurrent_processes_never_see_half_a_wrapper(packaged, tmp_path):
    """A wrapper once was emptied before it was written; a Spark that started from it at that moment ended silently."""
    packaged("shared")
    program = (
        "import sys, subprocess\n"
        "from pathlib import Path\n"
        "from pyspark_moldau.session import java\n"
        "java.find_java = lambda: java.Java(home=Path(sys.argv[1]), version=21, wrapped=True)\n"
        "sys.stdin.readline()\n"
        "for number in range(25):\n"
        "    home = java.java_home(Path(sys.argv[2]) / str(number))\n"
        "    subprocess.run([home / 'bin' / 'java', str(number)], check=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "shared"), str(tmp_path / "wrapper")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with ExitStack() as running:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        starters = [running.enter_context(subprocess.Popen(command, env=environment, **pipes)) for _ in range(3)]
        for starter in starters:
            assert starter.stdin is not None
            starter.stdin.write("go\n")
            starter.stdin.flush()
        reported = [starter.communicate(timeout=240)[0] for starter in starters]
    assert reported == ["".join(f"shared {number}\n" for number in range(25))] * 3


def test_a_wrong_java_is_named_with_the_remedy(tmp_path, monkeypatch):
    old = tmp_path / "java-11"
    (old / "bin").mkdir(parents=True)
    (old / "bin" / "java").write_text("#!/bin/sh\n")
    (old / "bin" / "java").chmod(0o755)
    (old / "release").write_text('JAVA_VERSION="11.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "SEARCH_PATTERNS", ())
    monkeypatch.setattr(java, "_packaged", lambda: None)
    with pytest.raises(
        java.NoJavaError, match=r"Spark needs Java 17, 21, 25 and only Java 11 at .*java-11 .*JAVA_HOME"
    ):
        java.java_home(tmp_path / "wrapper")
