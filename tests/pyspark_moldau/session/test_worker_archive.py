"""Goal: the archive of workers has all that their tasks import, equal contents give equal archives, and none is half.

Method: installed distributions are a graph of the test; the packages are small folders.
"""

import os
import zipfile
from importlib import metadata
from types import SimpleNamespace

import pytest

from pyspark_moldau.session import packaging

REQUIRES = {
    "trio": ["attrs>=23", "outcome", 'exceptiongroup; python_version < "3.11"', "pandas>=2"],
    "attrs": [],
    "outcome": ["attrs"],
    "fastavro": [
        'cramjam; extra == "codecs"',
        'zstandard; extra=="zstd"',
        "Typing_Extensions>=4 ; python_version > '3'",
    ],
    "typing-extensions": None,
    "cryptography": ["cffi (>=1.12)"],
    "cffi": ["pycparser[all]"],
    "pycparser": ["cryptography"],
    "cramjam": [],
    "pandas": ["numpy"],
    "unrelated": [],
}
"""Installed distributions; trio needs one that is not, and one that a Spark cluster has."""


@pytest.fixture
def installed(monkeypatch):
    def distribution(name):
        if name not in REQUIRES:
            raise metadata.PackageNotFoundError(name)
        return SimpleNamespace(requires=REQUIRES[name], version=f"1.{len(name)}", files=[], name=name)

    monkeypatch.setattr(packaging.metadata, "distribution", distribution)


def test_what_tasks_import_is_found_with_what_that_needs(installed):
    """Not what an extra would need, what is of another platform, or what a Spark cluster has."""
    assert set(packaging.needed_distributions()) == {
        *("trio", "attrs", "outcome", "fastavro", "typing-extensions", "cryptography", "cffi", "pycparser", "cramjam")
    }


@pytest.fixture
def packages(tmp_path, monkeypatch, installed):
    """Two packages with modules, compiled ones and sources, and one distribution with a file outside of its folder."""
    names = [
        *("__init__.py", "a/b.py", "_codec.so", "_codec.pyx", "_codec.c", "d.pxd", "e.pxi", "py.typed"),
        "a/c.json",
    ]
    for package in ("moldau", "pyspark_moldau"):
        for name in (*names, "a/__pycache__/b.pyc"):
            file = tmp_path / "in" / package / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{package}/{name}")
        root = SimpleNamespace(__file__=str(tmp_path / "in" / package / "__init__.py"))
        monkeypatch.setattr(packaging, package, root)
    (tmp_path / "in" / "trio.py").write_text("trio")
    monkeypatch.setattr(
        packaging, "files_of", lambda found: [("trio.py", tmp_path / "in" / "trio.py")] if found.name == "trio" else []
    )
    kept = ("__init__.py", "a/b.py", "a/c.json", "_codec.so", "py.typed")
    return sorted([*(f"{package}/{name}" for package in ("moldau", "pyspark_moldau") for name in kept), "trio.py"])


def test_an_archive_holds_the_packages_and_distributions(packages, tmp_path):
    path = tmp_path / "out.zip"
    made = packaging.write_package(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == packages
        for each in archive.infolist():
            assert (
                archive.read(each) == each.filename.removesuffix(".py" if each.filename == "trio.py" else "").encode()
            )
            assert (each.compress_type, each.external_attr) == (zipfile.ZIP_DEFLATED, 0o644 << 16)
    assert (made.path, made.files, made.size_bytes) == (path, len(packages), path.stat().st_size)
    assert made.distributions[:3] == ("attrs 1.5", "cffi 1.4", "cramjam 1.7")
    assert made.settings == packaging.session_settings(path)
    assert made.settings["spark.executorEnv.PYTHONPATH"] == "./moldau"


def test_equal_contents_give_equal_archives(packages, tmp_path):
    """Whenever the files were written."""
    packaging.write_package(tmp_path / "one.zip")
    for name in packages:
        os.utime(tmp_path / "in" / name, (2_000_000_000, 2_000_000_000))
    packaging.write_package(tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


@pytest.mark.parametrize("before", [None, b"the former archive"])
def test_an_archive_that_cannot_be_written_leaves_the_former(packages, tmp_path, before):
    out = tmp_path / "out" / "moldau.zip"
    out.parent.mkdir()
    if before is not None:
        out.write_bytes(before)
    (tmp_path / "in" / "trio.py").unlink()  # the last file
    with pytest.raises(FileNotFoundError):
        packaging.write_package(out)
    assert [(each.name, each.read_bytes()) for each in out.parent.iterdir()] == (
        [] if before is None else [("moldau.zip", before)]
    )
    (tmp_path / "in" / "trio.py").write_text("trio")
    packaging.write_package(out)
    assert [each.name for each in out.parent.iterdir()] == ["moldau.zip"]


def test_modules_of_a_distribution_without_a_list_are_all_found(tmp_path):
    """Packages and single modules, compiled or not, in any order; what stands beside them is another's."""
    files = ["b/__init__.py", "b/c.so", "b/c.pyx", "d.py", "d.cpython-311.so", "d.pyx", "dd.py", "e/x.py"]
    for name in [*files, "b/__pycache__/c.pyc", "b.txt", "d.egg/x"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a.egg-info").mkdir()
    (tmp_path / "a.egg-info" / "PKG-INFO").write_text("Name: a")
    for modules in ("b\nd", "d\nb", "d b gone"):
        (tmp_path / "a.egg-info" / "top_level.txt").write_text(modules)
        found = dict(packaging.files_of(metadata.Distribution.at(tmp_path / "a.egg-info")))
        wanted = {"b/__init__.py", "b/c.so", "d.py", "d.cpython-311.so"}
        assert found == {name: tmp_path / name for name in wanted}
    (tmp_path / "a.egg-info" / "top_level.txt").unlink()
    assert not dict(packaging.files_of(metadata.Distribution.at(tmp_path / "a.egg-info")))


def test_files_outside_of_the_folder_of_packages_stay_there(tmp_path):
    """A list of files names programs too: ``../../bin/name``."""
    for name in ("lib/a.py", "lib/a.pyx", "lib/__pycache__/a.pyc", "bin/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    info = tmp_path / "lib" / "a.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: a")
    (info / "RECORD").write_text("../bin/a,,\na.py,,\na.pyx,,\n__pycache__/a.pyc,,\n")
    assert dict(packaging.files_of(metadata.Distribution.at(info))) == {"a.py": tmp_path / "lib" / "a.py"}
