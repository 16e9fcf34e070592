"""Apicurio Registry, brought by Maven: a schema registry with Confluent's interface and its schemas in Kafka."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.maven import maven

from moldau_jepsen.launcher.ports import take_free_ports
from support.interop.clients import wait_until
from support.interop.maven import CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION = "3.0.9"
"""Later ones need Java 21."""
START_S = 120.0
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_RUNNER = f"apicurio-registry-app-{VERSION}-runner.jar"


def apicurio_home() -> tuple[Path | None, str]:
    """Returns the folder of the program, or None and the reason why there is none."""
    home = CACHE / f"apicurio-{VERSION}"
    if shutil.which("java") is None:
        return None, "no java on the PATH"
    if (home / _RUNNER).exists():
        return home, ""
    home.mkdir(parents=True, exist_ok=True)
    failure = maven(home, "dependency:copy", f"-Dartifact={_ARTIFACT}")
    if failure:
        return None, f"Apicurio Registry {VERSION} cannot be run: {failure}"
    (archive,) = home.glob("*.tar.gz")
    shutil.unpack_archive(archive, home)
    archive.unlink()
    return home, ""


@contextmanager
def apicurio(program: Path, bootstrap: str, log: Path) -> Iterator[str]:
    """Runs a registry without a disk of its own, and gives the address of Confluent's interface once it serves."""
    (port,) = take_free_ports(1)
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "apicurio.storage.kind": "kafkasql",
        "apicurio.kafkasql.bootstrap.servers": bootstrap,
        "apicurio.ccompat.legacy-id-mode.enabled": "true",
    }
    words = [f"-D{name}={value}" for name, value in settings.items()]
    command = ["java", "-Xmx400m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *words, "-jar", _RUNNER]
    with log.open("wb") as output, subprocess.Popen(command, cwd=program, stdout=output, stderr=output) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: _is_ready(url, process, log), "the registry is ready", START_S)
            yield f"{url}/apis/ccompat/v7"
        finally:
            process.kill()


def _is_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text(errors="replace")[-3_000:]
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=10):
            return True
    except OSError:  # of which urllib's errors are kinds
        return False
