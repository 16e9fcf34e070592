"""Goal: a node with ``console.listener`` serves the web console beside itself, and is not hurt when the console is.

Method: a real node of both roles and HTTP requests. The console's process is killed, and serves again; the node is
killed, and its console ends. A second node's console serves HTTPS.
"""

import json
import os
import re
import signal
import ssl
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from moldau_jepsen.launcher.ports import take_free_ports
from support.certificates import Authority
from support.interop.clients import WAIT_S, wait_until
from support.started import STDOUT, Command

pytestmark = pytest.mark.processes

CONFIG = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
console.listener=127.0.0.1:{console}
log.dirs={home}/data
"""


class Node:
    def __init__(self, home, authority=None):
        broker, controller, console = take_free_ports(3)
        scheme, more, self.trust = "http", "", None
        if authority is not None:
            scheme = "https"
            (home / "console.pem").write_text("".join(authority.issue("127.0.0.1")))
            more = f"console.ssl.keystore.location={home}/console.pem\n"
            self.trust = ssl.create_default_context(cadata=authority.trust)
        self.url = f"{scheme}://127.0.0.1:{console}"
        self.log = home / "log"
        config = home / "server.properties"
        config.write_text(CONFIG.format(home=home, broker=broker, controller=controller, console=console) + more)
        environment = os.environ | {"MOLDAU_PROFILE": "absent"}
        with self.log.open("wb") as log:
            self.process = Command("server", str(config), stdout=log, stderr=STDOUT, env=environment)

    def get(self, path, **headers):
        try:
            request = urllib.request.Request(self.url + path, headers=headers)
            with urllib.request.urlopen(request, timeout=10, context=self.trust) as found:
                return found.status, found.read(), found.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers
        except OSError:
            return 0, b"", {}

    def serves(self):
        assert self.process.poll() is None, self.log.read_text()
        return self.get("/")[0] == 200

    def console_pids(self):
        return [int(pid) for pid in re.findall(r"console-started .*pid=(\d+)", self.log.read_text())]


@contextmanager
def running(home, authority=None):
    node = Node(home, authority)
    try:
        yield node
    finally:
        node.process.kill()
        node.process.wait()


@pytest.fixture
def node(tmp_path):
    with running(tmp_path) as node:
        yield node


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as state:
        return state.read().rpartition(")")[2].split()[0] != "Z"


def test_a_node_serves_the_console_and_survives_it(node):
    wait_until(node.serves, "the console serves")
    status, body, headers = node.get("/api/session")
    assert status == 200
    session = json.loads(body)
    assert session["read_only"] is True, "unless the configuration says otherwise"
    cookie = headers["set-cookie"].partition(";")[0]
    wait_until(lambda: node.get("/api/overview", cookie=cookie)[0] == 200, "the console asks the node")
    assert json.loads(node.get("/api/overview", cookie=cookie)[1])["brokers"] == 1

    (first,) = node.console_pids()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(node.console_pids()) == 2 and node.serves(), "the console is started again")
    assert re.search(r"restarting .*task=console .*exit code -9", node.log.read_text())

    node.process.kill()
    node.process.wait()
    wait_until(lambda: not is_alive(node.console_pids()[1]), "the console ends with its node")


def test_a_node_that_stops_ends_its_console(tmp_path):
    with running(tmp_path, Authority()) as node:
        wait_until(node.serves, "the console serves HTTPS")
        assert "Secure" in node.get("/api/session")[2]["set-cookie"]
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(WAIT_S) == 0, node.log.read_text()
        assert not is_alive(node.console_pids()[0])
