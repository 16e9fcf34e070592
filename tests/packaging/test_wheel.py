"""Goal: what users install works: a wheel in a clean environment, with and without extras, and the source archive.

Method: both are built from the working copy, and installed into environments of their own; commands run there, in a
directory that holds nothing of the working copy. Without a package registry the tests skip with pip's last line.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging
ROOT = Path(__file__).resolve().parents[2]
CLIENT_ONLY = ("typer", "rich", "msgpack", "xxhash", "pysyncobj", "pyspark", "pytest")


def run(command, cwd, *, code=0, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MOLDAU_"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == code, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def pip(python, *arguments, cwd, **environment):
    try:
        return run([python, "-m", "pip", "--disable-pip-version-check", *arguments], cwd, **environment)
    except AssertionError as error:
        if "No matching distribution found" in str(error) or "NewConnectionError" in str(error):
            pytest.skip(f"no package registry: {str(error).strip().splitlines()[-1]}")
        raise


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of the tracked files, so that nothing built in the working copy slips into a wheel."""
    copy = tmp_path_factory.mktemp("sources")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    return copy


def build_wheel(sources, directory, **environment):
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", directory, sources, cwd=directory, **environment)
    (path,) = directory.glob("moldau-*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory):
    return build_wheel(sources, tmp_path_factory.mktemp("dist"))


def environment_with(wheel, directory, extras=""):
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    pip(python, "install", f"moldau{extras} @ {wheel.as_uri()}", cwd=directory)
    return python


def test_a_wheel_holds_packages_types_and_pages(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("moldau", "moldau_quorum", "moldau_broker", "pyspark_moldau", "moldau_jepsen", "moldau_cli"):
        assert f"{package}/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "support/", "benchmarks/"))]


def test_the_wheel_alone_is_the_client(wheel, tmp_path):
    """The clients import, the command names what it lacks, and nothing of the servers is brought along."""
    python = environment_with(wheel, tmp_path / "venv")
    installed = {line.split("==")[0].lower() for line in pip(python, "freeze", cwd=tmp_path).stdout.split("\n")}
    assert not installed & set(CLIENT_ONLY)
    run([python, "-c", "from moldau import Producer, Consumer, Admin; import moldau.blocking"], tmp_path)
    refused = run([python.parent / "moldau", "topics", "list"], tmp_path, code=2)
    assert refused.stderr.strip().endswith("run: pip install 'moldau[cli]'")
    assert refused.stderr.count("\n") == 1


def test_the_demo_and_the_plugin_run_from_a_wheel(sources, tmp_path):
    """The pure twin serves here: the wheel is built without a compiler."""
    copy, directory = tmp_path / "sources", tmp_path / "pure"
    shutil.copytree(sources, copy, ignore=shutil.ignore_patterns("build", "*.so", "*.egg-info"))
    directory.mkdir()
    pure = build_wheel(copy, directory, CC="false")
    assert not [name for name in zipfile.ZipFile(pure).namelist() if name.endswith(".so")]
    python = environment_with(pure, tmp_path / "venv", "[kit]")
    pip(python, "install", "pytest>=8.4", cwd=tmp_path)
    records = tmp_path / "records.txt"
    records.write_text("".join(f"record {number}\n" for number in range(5_000)))
    demo = run([python.parent / "moldau", "demo", "--input", records, "--no-spark"], tmp_path)
    assert "exactly once" in demo.stdout
    (tmp_path / "test_user.py").write_text(
        "from moldau.blocking import Producer\n\n\n"
        "def test_a_record_is_acknowledged(moldau_cluster):\n"
        "    with Producer({'bootstrap.servers': moldau_cluster.bootstrap}) as producer:\n"
        "        assert producer.send('events', b'one').result(30_000).offset == 0\n"
    )
    assert "1 passed" in run([python, "-m", "pytest", "-q", "test_user.py"], tmp_path).stdout


FROZEN = """
import sys

from moldau.blocking import Consumer, Producer

server = {"bootstrap.servers": sys.argv[1]}
with Producer({**server, "compression.type": "zstd"}) as producer:
    producer.send("events", b"one").result(30_000)
with Consumer({**server, "group.id": "frozen", "auto.offset.reset": "earliest"}) as consumer:
    consumer.subscribe(["events"])
    print(next(iter(consumer)).value.decode())
"""


def test_an_application_in_one_file_writes_and_reads(wheel, tmp_path, moldau_cluster):
    """PyInstaller packs what ``import`` statements name; a hook in the wheel names the other modules."""
    python = environment_with(wheel, tmp_path / "venv")
    pip(python, "install", "pyinstaller>=6", cwd=tmp_path)
    (tmp_path / "service.py").write_text(FROZEN)
    run([python.parent / "pyinstaller", "--onefile", "--log-level", "ERROR", "service.py"], tmp_path)
    assert run([tmp_path / "dist" / "service", moldau_cluster.bootstrap], tmp_path).stdout == "one\n"


def test_the_source_archive_builds_the_same_packages(sources, wheel, tmp_path):
    python = environment_with_build(tmp_path / "venv")
    run([python, "-m", "build", "--sdist", "--outdir", tmp_path, sources], tmp_path)
    (archive,) = tmp_path.glob("moldau-*.tar.gz")
    with tarfile.open(archive) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"client/moldau/records/_codec.pyx", "client/moldau/records/_wire.pxd", "LICENSE", "README.md"} <= inside
    again = build_wheel(archive, tmp_path)
    python_files = [
        {name for name in zipfile.ZipFile(path).namelist() if name.endswith(".py")} for path in (wheel, again)
    ]
    assert python_files[0] == python_files[1]


def environment_with_build(directory):
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    pip(python, "install", "build", cwd=directory)
    return python
