"""Starts modules of Moldau, and pytest, as processes that are forks of one process, which has imported their code.

A process with an interpreter of its own imports for most of a second before it does anything. The first start here
starts the process of ``support.started_server``; each started process is a fork of it. A fork has the standard streams,
environment variables, working directory and treatment of SIGINT that the caller gives or has, and its exit code is that
of the module. Its parent is the forking process. That one serves this process, all its forks and all processes that it
has forked itself, and ends when this process and its forks have ended.

Where the caller's own environment variables have changed since, an interpreter of its own runs the module: they may
change what is imported.

``share`` lets the nodes that ``moldau_jepsen.launcher`` starts be such forks as well.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from moldau_jepsen.launcher import interpreter
from support.commands import Finished
from support.started_request import ANSWER_BYTES, ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
COMMAND = "moldau_cli"
"""The module that runs commands."""
WORDS = [sys.executable, "-m", COMMAND]
"""The words that begin a command with an interpreter of its own."""
FORKED = (COMMAND, "moldau_cli.nodes.several", "moldau_cli.nodes.chaos_server", "moldau_jepsen.chaos.network.panel")
"""The modules of the launcher that ``share`` starts as forks."""
OF_INTERPRETER = ("PYTHON", "MOLDAU_PURE_PYTHON")
"""Prefixes of variables that count before the first line of a command runs."""
PATH_VARIABLE = "PYTHONPATH"
"""Where modules are found. The forking process has found all that a command needs, in this process's own path."""


class _Home(NamedTuple):
    """Where the forking process is found, and with what it is started."""

    directory: Path
    executable: str
    variables: dict[str, str]
    lives: tuple[int, int]
    """Both ends of a pipe: this process and its forks hold it open, and the forking process ends when it closes."""

    @property
    def socket(self) -> str:
        return str(self.directory / "socket")


class Command:
    """A started process, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(
        self,
        *words: str,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        module: str = COMMAND,
        has_session: bool = False,
    ) -> None:
        """Starts ``moldau``, or another module, with the words; the streams are given as to ``subprocess.Popen``.

        With ``has_session`` the process gets a session of its own.
        """
        variables = dict(os.environ if env is None else env)
        self._own: subprocess.Popen[bytes] | None = None
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._answer: socket.socket | None = None
        if (server := _socket_for(variables)) is None:
            command = [sys.executable, "-m", module, *words]
            self._own = subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, start_new_session=has_session
            )
            self.stdin, self.stdout, self.stderr = self._own.stdin, self._own.stdout, self._own.stderr
            self.pid = self._own.pid
            return
        ends: list[int] = []  # closed here once the command has them
        try:
            given = self._input(stdin, ends)
            out, self.stdout = _output(stdout, 1, ends)
            error, self.stderr = (out, None) if stderr == STDOUT else _output(stderr, 2, ends)
            self._answer = ask(
                server,
                (given, out, error),
                module=module,
                words=list(words),
                directory=str(cwd or Path.cwd()),
                environment=variables,
                has_session=has_session,
            )
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

    def _speaks(self, timeout: float | None) -> bool:
        assert self._answer is not None
        poll = select.poll()  # ``select`` takes no descriptor above 1,023
        poll.register(self._answer, select.POLLIN)
        return bool(poll.poll(None if timeout is None else 1_000 * timeout))

    def _hear(self) -> bool:
        """Reads what the forking process says of this command; returns False once that has ended."""
        assert self._answer is not None
        more = self._answer.recv(ANSWER_BYTES)
        self._heard += more
        return bool(more)

    def poll(self) -> int | None:
        """Returns the exit code, or None while the command runs."""
        if self._own is not None:
            self.returncode = self._own.poll()
        elif self.returncode is None and self._speaks(0):
            self._end()
        return self.returncode

    def _end(self) -> None:
        while self._hear():
            pass
        self._close_answer()
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
            if not self._speaks(timeout):
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

    def _close_answer(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def __del__(self) -> None:
        """Forgets a process that nothing waits for any more."""
        self._close_answer()

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
    *words: str,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    given: str = "",
    module: str = COMMAND,
) -> Finished:
    """Runs ``moldau``, or another module, in a process until it ends; returns its exit code and what it wrote.

    Raises:
        subprocess.TimeoutExpired: it did not end in ``timeout`` seconds; it is killed.
    """
    with tempfile.TemporaryFile() as typed, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        typed.write(given.encode())
        typed.seek(0)
        command = Command(*words, stdin=typed, stdout=out, stderr=errors, env=env, cwd=cwd, module=module)
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


def start_module(
    module: str, words: Sequence[str], *, stdin: Any = DEVNULL, stdout: Any, stderr: Any, prefix: Sequence[str] = ()
) -> Any:
    """Stands for ``moldau_jepsen.launcher.interpreter.start_module``, which starts what cannot be a fork."""
    home = _home_of_this_process()
    if prefix or module not in FORKED or home.executable != sys.executable or _socket_for(os.environ) is None:
        return OWN_INTERPRETER(module, words, stdin=stdin, stdout=stdout, stderr=stderr, prefix=prefix)
    return Command(*words, stdin=stdin, stdout=stdout, stderr=stderr, module=module, has_session=True)


OWN_INTERPRETER = interpreter.start_module


def share() -> None:
    """Lets one process fork for this process and its later forks, also the nodes that the launcher starts."""
    _home_of_this_process()
    interpreter.start_module = start_module


def shell_command(directory: Path) -> None:
    """Writes an executable file ``moldau`` whose process is a fork, for shells that find it by their PATH."""
    server = _socket_for(os.environ)
    assert server is not None, "a test has changed the variables of this process"
    request = Path(__file__).with_name("started_request.py")
    file = directory / "moldau"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {request} {server} "$@"\n')
    file.chmod(0o700)


def serve_from(directory: Path) -> None:
    """Lets the code of this new process start forks at the process that has forked it."""
    global _home
    _home = _Home(directory, sys.executable, _variables(os.environ), (-1, -1))
    interpreter.start_module = start_module


_home: _Home | None = None


def _home_of_this_process() -> _Home:
    global _home
    if _home is None:
        _home = _Home(Path(tempfile.mkdtemp(prefix="moldau-forks-")), sys.executable, _variables(os.environ), os.pipe())
        atexit.register(_remove, _home.directory, os.getpid())
    return _home


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(directory)


def _socket_for(environment: Mapping[str, str]) -> str | None:
    """Returns where a process with these variables can be forked, starting the forking process if need be."""
    home = _home_of_this_process()
    own = _variables(os.environ)
    if own != home.variables or _of_interpreter(environment) != _of_interpreter(own):
        return None
    with (home.directory / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(home.socket):
            _serve(home)
    return home.socket


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(OF_INTERPRETER) and name != PATH_VARIABLE
    }


def _serve(home: _Home) -> None:
    """Starts the process that forks."""
    path = os.pathsep.join(filter(None, sys.path))
    with socket.socket(socket.AF_UNIX) as requests:
        requests.bind(home.socket)
        requests.listen(socket.SOMAXCONN)
        child = subprocess.Popen(
            [sys.executable, "-m", "support.started_server", str(home.directory), str(home.lives[0])],
            stdin=requests.fileno(),
            stdout=DEVNULL,
            pass_fds=(home.lives[0],),
            env={**os.environ, PATH_VARIABLE: path},
        )
    child.returncode = 0  # it stays until this process ends; Popen would warn of it
    (home.directory / "pid").write_text(str(child.pid))
