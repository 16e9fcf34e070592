"""Goal: the shell around ``Group`` keeps the other processes alive, whatever happens to one of them.

Method: the supervisor on virtual time, with processes of the test that report over the real notification sockets.
"""

from __future__ import annotations

import errno
import signal
import socket
import sys

import pytest
import trio
from trio.testing import MockClock

from moldau.runtime.config import parse_server_config, process_configs
from moldau_cli.nodes import server
from moldau_cli.nodes.group.supervisor import Supervisor
from moldau_cli.nodes.watchdog import SystemdNotifier

FILE = """process.roles=broker
node.id=10
broker.processes=2
controller.quorum.voters=101@127.0.0.1:9093
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:9092
log.dirs=/data
"""


class FakeProcess:
    """A process that serves at once, until it is signalled."""

    pid = 1

    def __init__(self, notify_socket: str) -> None:
        self.signals: list[int] = []
        self._ended = trio.Event()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
            reports.sendto(b"READY=1", notify_socket)

    async def wait(self) -> int:
        await self._ended.wait()
        return 0 if signal.SIGTERM in self.signals else -9

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self._ended.set()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def test_a_process_that_cannot_be_made_is_tried_again(monkeypatch) -> None:
    """Without memory for one process, all others of the machine were killed."""
    made: list[FakeProcess] = []
    failures = [OSError(errno.ENOMEM, "Cannot allocate memory"), RuntimeError("can't start new thread")]

    async def open_process(command: list[str], *, env: dict[str, str], **_: object) -> FakeProcess:
        await trio.lowlevel.checkpoint()
        if len(made) == 2 and failures:
            raise failures.pop()
        made.append(FakeProcess(env["NOTIFY_SOCKET"]))
        return made[-1]

    monkeypatch.setattr(trio.lowlevel, "open_process", open_process)
    configs = process_configs(parse_server_config(FILE, "node.properties", {}))
    supervisor = Supervisor(["moldau"], configs, SystemdNotifier({}, 1))

    async def story() -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb)
            code = await supervisor.run()
        return code

    async def disturb() -> None:
        while len(made) < 2:  # a busy wait: trio binds the sockets in threads, for which virtual time does not wait
            await trio.lowlevel.checkpoint()
        await trio.sleep(1)
        made[1].kill()
        await trio.sleep(10)
        signal.raise_signal(signal.SIGTERM)

    assert trio.run(story, clock=MockClock(autojump_threshold=0), strict_exception_groups=True) == 0
    assert not failures
    assert [process.signals for process in made] == [[signal.SIGTERM], [signal.SIGKILL], [signal.SIGTERM]]


WORDS = (
    "",
    "--log-level debug",
    "--log-format json",
    "--log-level ERROR --log-format TEXT --with-parent",
)


@pytest.mark.parametrize("words", WORDS)
def test_each_process_gets_the_words_of_its_group(words: str, monkeypatch, tmp_path) -> None:
    """A process logs as its supervisor does: the words of its command line mean the same as those of the group."""
    path = tmp_path / "node.properties"
    path.write_text(FILE.replace("/data", str(tmp_path / "data")))
    given, logs = server.parse_words([str(path), *words.split()]), []

    class Fake:
        def __init__(self, command, configs, notifier) -> None:
            program, option, module, name, *self.words = command
            assert (program, option, module, name) == (sys.executable, "-m", "moldau_cli", "server")
            assert [config.get_int("node.id") for config in configs] == [10, 11]

        async def run(self) -> int:
            assert len(logs) == 1, "the group's own lines come before those of its processes"
            parsed = server.parse_words([*self.words, "--node", "11", "--with-parent"])
            assert parsed == given._replace(node_id=11, with_parent=True)
            await trio.lowlevel.checkpoint()
            return 7

    monkeypatch.setattr("moldau_cli.nodes.group.supervisor.Supervisor", Fake)
    monkeypatch.setattr(server, "_start_log", lambda *arguments: logs.append(arguments))
    assert server.serve_command([str(path), *words.split()]) == 7


def test_a_process_has_its_own_environment_and_early_stop(monkeypatch) -> None:
    """The limit of systemd's watchdog holds for each process, and a stop that comes while it starts is not lost."""
    monkeypatch.setenv("WATCHDOG_PID", "1")
    monkeypatch.setenv("WATCHDOG_USEC", "9000000")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    given: list[tuple[list[str], dict[str, str], dict[str, object]]] = []
    made: list[FakeProcess] = []
    stopping = trio.Event()

    async def open_process(command: list[str], *, env: dict[str, str], **more: object) -> FakeProcess:
        given.append((command, env, more))
        if len(given) == 2:
            await stopping.wait()
        made.append(FakeProcess(env["NOTIFY_SOCKET"]))
        return made[-1]

    monkeypatch.setattr(FakeProcess, "terminate", lambda one: one.send_signal(signal.SIGTERM), raising=False)
    monkeypatch.setattr(trio.lowlevel, "open_process", open_process)
    configs = process_configs(parse_server_config(FILE, "node.properties", {}))
    supervisor = Supervisor(["moldau", "server"], configs, SystemdNotifier({}, 1))

    async def disturb() -> None:
        while len(given) < 2 or not made:  # a busy wait: trio binds the sockets in threads
            await trio.lowlevel.checkpoint()
        supervisor._perform(supervisor._group.stop(trio.current_time() * 1000))
        stopping.set()

    async def story() -> int:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(disturb)
                return await supervisor.run()

    assert trio.run(story, strict_exception_groups=True) == 0
    assert [process.signals for process in made] == [[signal.SIGTERM]] * 2
    assert {tuple(command) for command, _, _ in given} == {
        ("moldau", "server", "--node", str(node), "--with-parent") for node in (10, 11)
    }
    for _, env, more in given:
        assert "WATCHDOG_PID" not in env
        assert env["WATCHDOG_USEC"] == "9000000"
        assert more["start_new_session"] is True, "Ctrl-C is for the supervisor"
    sockets = {env["NOTIFY_SOCKET"] for _, env, _ in given}
    assert len(sockets) == 2
    assert "/nowhere" not in sockets
