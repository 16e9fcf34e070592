"""Goal: the guide to three machines works on three hosts, one of which is cut off and comes back.

Method: network namespaces stand for the hosts; each has directories of its own, a program in the place of systemctl,
and one in the place of ssh. The guide's commands run in its order, each in its host; names become addresses, and paths
those of the host. Skipped with the reason where namespaces cannot be made.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moldau_jepsen.chaos.network.namespaces import NamespaceLinks
from moldau_jepsen.chaos.network.rules import CLIENT
from moldau_jepsen.launcher import LauncherUsageError
from support.interop.clients import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.proof]

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "three-machines.md"
BLOCK = re.compile(
    r"^<!-- not run: on (?P<hosts>[\w, ]+?)(?: without (?P<without>\w+))? of three machines, by [\w/.]+ -->\n"
    r"```sh\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MACHINES = ("m1", "m2", "m3")
COMMAND_S = 240
SYSTEMCTL = """\
#!/bin/bash
# In the place of systemd: starts and stops the node of a host, and restarts it once it is ready.
set -e
for unit in "$@"; do :; done
name=${unit#moldau@}
stop() {
  kill -TERM "$(cat "$ROOT/$name.pid")"
  while kill -0 "$(cat "$ROOT/$name.pid")" 2> /dev/null; do sleep 0.1; done
}
start() {
  moldau server "$ROOT/etc/moldau/$name.properties" > /dev/null 2> "$ROOT/$name.log" &
  node=$!
  echo $node > "$ROOT/$name.pid"
  # The node ends with the test, however that ends.
  ( while kill -0 "$TEST" && kill -0 $node; do sleep 1; done; kill -KILL $node ) > /dev/null 2>&1 &
}
case "$1" in
  enable) start ;;
  restart) stop; start; until grep -q " ready " "$ROOT/$name.log"; do sleep 0.1; done ;;
  *) echo "unknown: $*" >&2; exit 1 ;;
esac
"""
SSH = """\
#!/bin/bash
# In the place of ssh: runs a command on the host that has the address.
host=$1; shift
exec "$HOSTS/$host/run" "$@"
"""
RUN = """\
#!/bin/bash
export ROOT={root}
exec ip netns exec {namespace} "$@"
"""


class Machines:
    """Three hosts, and the place of the administrator."""

    def __init__(self, directory, links):
        self.directory, self.links = directory, links
        self._programs = directory / "bin"
        self._programs.mkdir()
        self._program(self._programs / "systemctl", SYSTEMCTL)
        self._program(self._programs / "ssh", SSH)
        self.hosts = {name: links.place(number).host for number, name in enumerate(MACHINES, 1)}
        self.exports = ""
        for number, name in enumerate(MACHINES, 1):
            (self.root(name) / "etc" / "moldau").mkdir(parents=True)
            place = self.directory / "hosts" / self.hosts[name]
            place.mkdir(parents=True)
            self._program(place / "run", RUN.format(root=self.root(name), namespace=links.place(number).namespace))

    @staticmethod
    def _program(path, text):
        path.write_text(text)
        path.chmod(0o755)

    def root(self, name):
        return self.directory / name

    def run(self, name, text):
        """Runs commands on a host, or for ``admin`` in this namespace; returns what they wrote."""
        for host, address in self.hosts.items():
            text = text.replace(f"{host}.example", address)
        if name != "admin":
            text = text.replace("/etc/moldau", f"{self.root(name)}/etc/moldau")
            text = text.replace("/var/lib/moldau", f"{self.root(name)}/data")
        self.exports += "".join(line + "\n" for line in text.splitlines() if line.startswith("export "))
        path = f"{self._programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "HOSTS": str(self.directory / "hosts")}
        environment["TEST"] = str(os.getpid())
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        runner = [] if name == "admin" else [str(self.directory / "hosts" / self.hosts[name] / "run")]
        done = subprocess.run(
            [*runner, "bash", "-c", f"set -euo pipefail\n{self.exports}{text}"],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{self.logs()}"
        return done.stdout

    def logs(self):
        return "\n".join(path.read_text()[-600:] for path in sorted(self.directory.glob("m*/*.log")))

    def end(self):
        """Kills the nodes."""
        for path in self.directory.glob("m*/*.pid"):
            pid = int(path.read_text())
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "the node has ended")


@pytest.fixture
def machines(tmp_path):
    try:
        links = NamespaceLinks([1, 2, 3]).__enter__()
    except LauncherUsageError as error:
        pytest.skip(str(error))
    try:
        made = Machines(tmp_path, links)
        try:
            yield made
        finally:
            made.end()
    finally:
        links.__exit__(None, None, None)


def test_the_guide_works_on_three_hosts(machines):
    """The third host is cut off for the commands that the guide gives without it."""
    blocks = list(BLOCK.finditer(PAGE.read_text()))
    assert len(blocks) == PAGE.read_text().count("```sh")
    said, cluster_id = [], ""
    for block in blocks:
        absent = MACHINES.index(block["without"]) + 1 if block["without"] else None
        others = [CLIENT, *(number for number in (1, 2, 3) if number != absent)]
        if absent:
            machines.links.cut([absent], others)
        text = block["text"].replace("$CLUSTER_ID", cluster_id)
        said += [machines.run(host, text) for host in block["hosts"].split(", ")]
        cluster_id = cluster_id or said[0].strip()
        if absent:
            assert "degraded: " in said[-1]
            assert "one machine is missing" in said[-1]
            machines.links.heal()
    assert "healthy: 0 problems; 3 brokers" in "".join(said)
    assert "3 nodes restarted" in said[-1]
