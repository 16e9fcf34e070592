"""Goal: nodes accept the certificates of the page about TLS and the files that the guide to secured machines writes.

Method: openssl makes the certificates as the page says. The guide's commands write the files of a controller and of a
broker, with ports and paths of the test, and ``moldau server --check`` reads them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moldau_jepsen.launcher.ports import take_free_ports
from support.commands import run_command
from support.pages import FENCE, ROOT
from support.started import shell_command

pytestmark = pytest.mark.processes


def unrun(page, reason):
    """Returns the blocks of a page that follow a comment with this reason."""
    return [code for why, _, code in FENCE.findall((ROOT / "docs" / page).read_text(encoding="utf-8")) if why == reason]


def run(script, place):
    (place / "bin").mkdir(exist_ok=True)
    shell_command(place / "bin")
    path = os.pathsep.join(map(str, (place / "bin", Path(sys.executable).parent, os.environ["PATH"])))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{script}"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_files_of_the_guide_to_secured_machines_are_accepted(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (certificates,) = unrun("tls.md", "makes files in the working directory")
    run(certificates, tmp_path)
    (tmp_path / "secrets").write_text("node=one\nadmin=two\n")
    (tmp_path / "secrets").chmod(0o600)
    init, _profile = unrun("guides/secure.md", "needs several machines")
    broker, *controllers = take_free_ports(4)
    for number, port in enumerate(controllers, 1):
        init = init.replace(f"c{number}.example:9093", f"127.0.0.1:{port}")
    init = init.replace("/etc/moldau", str(tmp_path)).replace("/var/lib/moldau", str(tmp_path / "data"))
    run("CLUSTER_ID=$(moldau node cluster-id)\n" + init.replace("0.0.0.0:9092", f"0.0.0.0:{broker}"), tmp_path)
    for name, said in (("controller", "node 101 (controller)"), ("broker", "node 1 (broker)")):
        done = run_command("server", str(tmp_path / f"{name}.properties"), "--check")
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
