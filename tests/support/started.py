"""Starts ``moldau`` commands as processes that are forks of one process, which has imported their code.

A command that is started with an interpreter of its own imports for most of a second before it does anything. The
first start here starts the process of ``support.started_server``, which stays until this process ends; each command is
a fork of it. A fork has the standard streams, environment variables, working directory and treatment of SIGINT that the
caller gives or has, and its exit code is that of the command. Its parent is the forking process, which ends when this
process does. Where the caller's own environment variables have changed since, an interpreter of its own runs the
command: they may change what is imported.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from support.commands import Finished

if TYPE_CHECKING:
    from collections.abc import Mapping

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
WORDS = [sys.executable, "-m", "moldau_cli"]
"""The words that begin a command with an interpreter of its own."""
STATUS_BYTES = 64
OF_INTERPRETER = ("PYTHON", "MOLDAU_PURE_PYTHON")
"""Prefixes of variables that count before the first line of a command runs."""
PATH_VARIABLE = "PYTHONPATH"
"""Where modules are found. The forking process has found all that a command needs, in this process's own path."""


class _Server(NamedTuple):
    """The process that forks commands, and what it was started with."""

    owner: int
    pid: int
    variables: dict[str, str]
    requests: socket.socket


class Command:
    """A started command, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(
        self,
        *words: str,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Starts ``moldau`` with the words; the streams are given as to ``subprocess.Popen``."""
        variables = dict(os.environ if env is None else env)
        self._own: subprocess.Popen[bytes] | None = None
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        if (server := _server_for(variables)) is None:
            command = [*WORDS, *words]
            self._own = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd)
            self.stdin, self.stdout, self.stderr = self._own.stdin, self._own.stdout, self._own.stderr
            self.pid = self._own.pid
            return
        ends: list[int] = []  # closed here once the command has them
        try:
            given = self._input(stdin, ends)
            out, self.stdout = _output(stdout, 1, ends)
            error, self.stderr = (out, None) if stderr == STDOUT else _output(stderr, 2, ends)
            self._status, status = os.pipe()
            ends.append(status)
            request = {
                "words": words,
                "directory": str(cwd or Path.cwd()),
                "environment": variables,
                "ignores_interrupts": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
            }
            _send(server.requests, json.dumps(request).encode(), [given, out, error, status])
        finally:
            for end in ends:
                os.close(end)
        self._heard = b""
        while b"\n" not in self._heard:
            if not self._hear():
                raise BrokenPipeError("the process that forks commands has ended")
        self.pid = int(self._heard.partition(b"\n")[0])

    def _input(self, stdin: Any, ends: list[int]) -> int:
        """Returns the descriptor of the command's standard input; appends to ``ends`` if it is to be closed."""
        if stdin != PIPE:
            return _descriptor(stdin, 0, ends)
        end, mine = os.pipe()
        ends.append(end)
        self.stdin = open(mine, "wb", buffering=0)  # noqa: SIM115 - ``__exit__`` closes it
        return end

    def _hear(self) -> bool:
        """Reads what the forking process says of this command; returns False once that has ended."""
        more = os.read(self._status, STATUS_BYTES)
        self._heard += more
        return bool(more)

    def poll(self) -> int | None:
        """Returns the exit code, or None while the command runs."""
        if self._own is not None:
            self.returncode = self._own.poll()
        elif self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._end()
        return self.returncode

    def _end(self) -> None:
        while self._hear():
            pass
        os.close(self._status)
        ended = self._heard.split(b"\n")[1]
        assert ended, "the process that forks commands has ended before the command"
        self.returncode = os.waitstatus_to_exitcode(int(ended))

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end, and returns the exit code.

        Raises:
            subprocess.TimeoutExpired: the command still runs after ``timeout`` seconds.
        """
        if self._own is not None:
            self.returncode = self._own.wait(timeout)
        elif self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("moldau", timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signals the command, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Asks the command to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the command at once."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        """Returns the command."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the pipes and waits for the end."""
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()


def run_started(
    *words: str, timeout: float, env: Mapping[str, str] | None = None, cwd: Path | None = None, given: str = ""
) -> Finished:
    """Runs a command in a process of its own until it ends; returns its exit code and what it wrote.

    Raises:
        subprocess.TimeoutExpired: it did not end in ``timeout`` seconds; it is killed.
    """
    with tempfile.TemporaryFile() as typed, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        typed.write(given.encode())
        typed.seek(0)
        command = Command(*words, stdin=typed, stdout=out, stderr=errors, env=env, cwd=cwd)
        try:
            code = command.wait(timeout)
        finally:
            command.kill()
            command.wait()
        out.seek(0)
        errors.seek(0)
        return Finished(code, out.read().decode(), errors.read().decode())


def _output(stream: Any, inherited: int, ends: list[int]) -> tuple[int, IO[bytes] | None]:
    """Returns the descriptor that the command writes to, and the end to read from if a pipe was asked for."""
    if stream != PIPE:
        return _descriptor(stream, inherited, ends), None
    mine, end = os.pipe()
    ends.append(end)
    return end, open(mine, "rb")


def _descriptor(stream: Any, inherited: int, ends: list[int]) -> int:
    if stream is None:
        return inherited
    if stream == DEVNULL:
        ends.append(os.open(os.devnull, os.O_RDWR))
        return ends[-1]
    return stream if isinstance(stream, int) else int(stream.fileno())


def _send(requests: socket.socket, request: bytes, descriptors: list[int]) -> None:
    """Sends a request: four bytes with its length, which carry the descriptors, and the bytes."""
    socket.send_fds(requests, [len(request).to_bytes(4, "big")], descriptors)
    requests.sendall(request)


_running: _Server | None = None


def _server_for(environment: Mapping[str, str]) -> _Server | None:
    """Returns the process that can fork a command with these variables, started if need be; None if none can."""
    global _running
    own = _variables(os.environ)
    if any(environment.get(name) != value for name, value in _of_interpreter(own).items()) or (
        _of_interpreter(environment).keys() - own.keys()
    ):
        return None
    if _running is None or _running.owner != os.getpid():
        _running = _serve(own)
    return _running if _running.variables == own else None


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(OF_INTERPRETER) and name != PATH_VARIABLE
    }


def _serve(variables: dict[str, str]) -> _Server:
    """Starts the process that forks commands."""
    requests, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    path = os.pathsep.join(filter(None, sys.path))
    with served:
        child = subprocess.Popen(
            [sys.executable, "-m", "support.started_server"],
            stdin=served.fileno(),
            stdout=DEVNULL,
            env={**os.environ, PATH_VARIABLE: path},
        )
    child.returncode = 0  # it stays until this process ends; Popen would warn of it
    return _Server(os.getpid(), child.pid, variables, requests)
