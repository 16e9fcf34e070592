"""Goal: the command line keeps its contract: exit codes 0, 1, 2; wrong usage is one line on stderr; --json anywhere.
Method: whole commands in this process, and a real one where the interpreter matters.
"""

import errno
import io
import json
import os
import subprocess
import sys

import pytest
import trio

from moldau_cli import main as entry
from moldau_cli import output
from moldau_cli.client import running
from moldau_cli.commands.produce import _given_bytes, _header
from moldau_cli.errors import CommandError, OutputError
from moldau_cli.main import main, split_json_flag
from moldau_cli.output import table
from moldau_cli.words import brokers_last


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--json"], "missing command"),
        (["bogus"], "no such command 'bogus'"),
        (["topcs"], "did you mean 'topics'"),
        (["transactions"], "no such command 'transactions'. did you mean 'txns'?; see: moldau --help"),
        (["kafka-leader-election.sh"], "did you mean 'elect'"),
        (["kafka-topics.sh", "--list"], "did you mean 'topics'"),
        (["cluster", "--json"], "missing command"),
        (["cluster", "start", "--brokers", "x"], "'--brokers': 'x' is not a whole number;"),
        (["cluster", "start", "--timeout", "x"], "'--timeout': 'x' is not a number;"),
        (["cluster", "start", "--brokers", "0", "--dir", "{tmp}/c"], "number of brokers must be 1..99, not 0"),
        (["cluster", "start", "--set", "novalue", "--dir", "{tmp}/c"], "--set: expected key=value, not 'novalue'"),
        (["topics", "delete", "t", "-b", ""], "--bootstrap-server is empty: give host:port"),
        (["cluster", "status", "-b", " "], "--bootstrap-server is empty: give host:port"),
        (["topics", "list", "-b", ","], "--bootstrap-server: no address given"),
        (["topics", "list", "-b", "h"], "--bootstrap-server: expected host:port, not 'h'"),
        (["top", "--once", "--count", "5"], "--once and --count exclude each other"),
        (["offsets", "t:x"], "moldau: topic: expected name or name:0,1, not 't:x'"),
        (["mirror", "check", "{tmp}"], ": is a directory"),
        (["mirror", "{tmp}/no.toml"], "/no.toml: no such file"),
        (["mirror", "{tmp}/no.toml", "--json"], "/no.toml: no such file"),
        (["mirror", "no.tml"], "no such command 'no.tml'"),
        (["mirror", "no", "no.toml"], "no such command 'no'"),
        (["cluster", "roll"], "; for nodes elsewhere, give --restart-command\n"),
        (["cluster", "roll", "-b", "h:1"], "give --restart-command: how is a node of that cluster restarted?"),
        (["cluster", "roll", "--restart-command", "x", "--dir", "{tmp}"], "give --bootstrap-server with it"),
        (["cluster", "start", "--bogus"], "no such option: --bogus"),
        (["cluster", "kill"], "missing argument 'node'"),
        (["cluster", "kill", "1", "--dir", "{tmp}"], "no cluster in"),
        (["cluster", "status", "--dir", "{tmp}", "--json"], "no cluster in"),
        (["log", "dump", "{tmp}/" + 300 * "x"], "file name too long"),
        (["topics", "list", "--command-config", "{tmp}/no"], "/no: no such file or directory\n"),
        (["consume", "t", "--from", "noon"], "moldau: --from: expected a time such as"),
        (["consume", "t", "--to", "noon"], "moldau: --to: expected a time such as"),
        (["consume", "t", "--from", "1h", "--to", "2h"], "--to 2h is not later than --from 1h"),
        (["consume", "t", "--group", ""], "--group is empty"),
        (["groups", "list", "--state", "stabel"], "--state: 'stabel' is not one of stable, empty, dead,"),
        (["produce", "t", "--transactional-id", ""], "--transactional-id is empty"),
        (["produce", "t", "--timestamp", "noon"], "--timestamp: expected a time such as"),
        (["produce", "t", "--timestamp", "1969-01-01"], "--timestamp: 1969-01-01 is before 1970"),
        (["consume", "t", "-X", "client.rack=\udcff"], "-x: 'client.rack=\\udcff' is not utf-8"),
        (["acls", "add", "--allow-principal", "al", "--topic", "t"], "--allow-principal: expected type:name"),
        (["acls", "remove", "--deny-principal", "User:", "--topic", "t"], "such as user:alice, not 'user:'"),
        (["acls", "list", "--principal", "al"], "--principal: expected type:name, such as user:al, not 'al'"),
        (["acls", "add", "--deny-principal", "User:a", "--allow-host", "h", "--cluster"], "--allow-host needs --allow"),
        (["acls", "add", "--allow-principal", "User:a", "--topic", "t", "--idempotent"], "goes with --producer"),
        (
            ["acls", "add", "--deny-principal", "User:a", "--deny-host", "10.0.0", "--topic", "t"],
            "--deny-host: expected an address, a network such as 10.0.0.0/8, or *, not '10.0.0'",
        ),
        (["acls", "add", "--allow-principal", "user:a", "--topic", "t"], "not 'user:a'; case matters"),
        (
            ["acls", "add", "--allow-principal", "User:a", "--producer", "--topic", "t", "--group", "g"],
            "give no right to --group here",
        ),
        (["groups", "reset", "g", "--topic", "t", "--to-datetime", "9" * 5000], "--to-datetime: expected a time such"),
        (["groups", "reset", "g", "--topic", "t", "--by-duration", "9" * 5000 + "d"], "--by-duration: expected a dur"),
        (["groups", "reset", "g", "--topic", "t:" + "9" * 5000, "--to", "latest"], "expected name or name:0,1"),
        (["consume", "t", "--offset", "1:" + "9" * 5000], "--offset: expected beginning"),
        (["reassign", "start", "t", "0", "9" * 5000], "expected different broker ids"),
        (["topics", "delete-records", "t", "--before", "9" * 20], "expected an offset or end"),
        (["cluster", "roll", "-b", "h:1", "--restart-command", "x {{host:d}}"], "expected a command with {id}"),
        (["produce", "t", "-H", "novalue"], "--header: expected name=value, not 'novalue'"),
        (["produce", "t", "-H", "\udcff=x"], "the name of a header is not utf-8"),
        (["sim", "corpus", "add", "{tmp}/no", "--name", "n", "--why", "w"], "/no is no file: give the schedule.json"),
        (["server"], "configuration file missing"),
        (["server", "{tmp}/missing.properties"], "no such file or directory"),
        (["server", "a", "b"], "one configuration file expected, got a and b"),
        (["server", "a", "--bogus"], "unknown option --bogus"),
        (["server", "a", "--log-level", "loud"], "--log-level must be one of"),
        (["server", "a", "--log-format", "xml"], "--log-format must be one of text, json"),
    ],
    ids=lambda value: " ".join(value)[:80] if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, words, tmp_path, capsys):
    code = main([argument.format(tmp=tmp_path) for argument in arguments])
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert output.err.count("\n") == 1
    reported = output.err
    if "--json" in arguments:
        document = json.loads(reported)
        assert document["exit_code"] == 2
        reported = document["error"]
    else:
        assert reported.startswith("moldau: ")
    assert words in reported.lower()


@pytest.mark.parametrize("words", [[], ["topics"], ["pipeline", "views"]], ids=" ".join)
def test_a_group_without_a_command_shows_its_help(words, capsys):
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert main(words) == 2
    assert capsys.readouterr().err == shown


def test_an_unknown_configuration_key_names_the_nearest(tmp_path, capsys):
    path = tmp_path / "server.properties"
    path.write_text("process.roles=broker\nnode.idd=1\n")
    assert main(["server", str(path)]) == 2
    assert "node.idd: unknown broker configuration key; did you mean node.id?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--json", "version"], ["version", "--json"], ["--version", "--json"]])
def test_json_may_stand_anywhere(arguments, capsys):
    assert main(arguments) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["version"]


def test_brokers_may_be_named_before_the_command():
    """kcat and rpk have them there; a value may stand alone or behind an equals sign."""
    assert brokers_last(["-b", "h:1", "topics", "list"]) == ["topics", "list", "-b", "h:1"]
    given = ["--bootstrap-server=h:1", "produce", "t", "--", "-x"]
    assert brokers_last(given) == ["produce", "t", "--bootstrap-server=h:1", "--", "-x"]
    for same in ([], ["-b"], ["-b", "h:1"], ["topics", "list", "-b", "h:1"]):
        assert brokers_last(same) == same


@pytest.mark.parametrize("others", [["--command-config", "{file}"], ["--profile", "p"], ["--json", "--profile=p"]])
def test_brokers_may_stand_behind_other_global_options(others, tmp_path, monkeypatch, capsys):
    """The command line knew no option -b there."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "c.properties"
    file.write_text("client.id=c\n")
    assert main(["profile", "add", "p", "-b", "h:1"]) == 0
    words = [each.format(file=file) for each in others]
    assert main([*words, "-b", " ", "topics", "list"]) == 2
    assert "--bootstrap-server is empty" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--profile", "--command-config"])
def test_an_option_that_is_there_twice_is_no_unknown_one(option, capsys):
    """The second one was "No such option", although the help says that it may stand anywhere."""
    assert main(["topics", "list", option, "a", f"{option}=b"]) == 2
    assert capsys.readouterr().err == f"moldau: {option} is given twice\n"


def test_json_behind_a_double_dash_is_an_ordinary_word():
    assert split_json_flag(["produce", "t", "--json", "--", "--json"]) == (True, ["produce", "t", "--", "--json"])
    assert split_json_flag(["produce", "--", "--json"]) == (False, ["produce", "--", "--json"])


@pytest.mark.parametrize("arguments", [["--help"], ["cluster", "--help"], ["cluster", "start", "-h"], ["server", "-h"]])
def test_help_goes_to_stdout(arguments, capsys):
    assert main(arguments) == 0
    assert "sage: moldau" in capsys.readouterr().out


def test_assertions_cannot_be_switched_off():
    run = subprocess.run(
        [sys.executable, "-O", "-m", "moldau_cli", "version"], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 2
    assert "python -O removes the assertions" in run.stderr


def test_a_server_loads_no_command_line_library():
    program = (
        "import sys; from moldau_cli.main import main; code = main(['server', '/missing']); "
        "heavy = {'typer', 'rich', 'pyarrow', 'pyspark', 'numpy', 'pandas'} & set(sys.modules); "
        "sys.exit(f'{code} {sorted(heavy)}')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert run.stderr.splitlines()[-1] == "2 []"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OutputError(errno.ENOSPC, "No space left on device"), OutputError),
        (OSError(errno.ENOSPC, "No space left on device"), CommandError),
        (ConnectionResetError(104, "reset"), CommandError),
    ],
)
def test_the_output_of_a_client_is_no_connection(error, raised):
    """``consume`` on a full disk showed the bare error, as if a broker had sent it."""

    async def work():
        await trio.lowlevel.checkpoint()
        raise error

    with pytest.raises(raised):
        running.run(work, "127.0.0.1:1", probes=False)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OutputError(errno.ENOSPC, "No space left on device"), "cannot write the output: No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
    ],
)
def test_only_an_error_of_the_output_is_called_so(error, text, monkeypatch, capsys):
    """A fork or an epoll that the system refused was reported as output that could not be written."""

    def fail(**_):
        raise error

    monkeypatch.setattr("moldau_cli.application.application.main", fail)
    monkeypatch.setattr(entry, "_drop_output", lambda: None)
    assert main(["version"]) == 1
    assert capsys.readouterr().err == f"moldau: {text}\n"


def test_a_limit_of_the_process_has_no_number():
    """``topics list`` with six descriptors said ``[Errno 24] Too many open files``."""

    async def work():
        await trio.lowlevel.checkpoint()
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(CommandError, match=r"^Too many open files$"):
        running.run(work, "127.0.0.1:1", probes=False)


def test_a_full_pipe_that_does_not_block_is_named(monkeypatch):
    reader, writer = os.pipe2(os.O_NONBLOCK)
    with open(reader, "rb"), open(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        entry._buffer_output()
        with pytest.raises(OutputError, match="temporarily unavailable"):
            sys.stdout.write("x" * 1_000_000)
        monkeypatch.setattr(entry._Answers, "write", lambda _, data: len(data))  # what is left goes nowhere
        sys.stdout.flush()


class AlmostFull(io.RawIOBase):
    """A file on a disk with room for some bytes: it takes what fits, as the system does, and then refuses."""

    def __init__(self, room):
        self.content = b""
        self._room = room

    def writable(self):
        return True

    def write(self, data):
        left = self._room - len(self.content)
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.content += bytes(data[:left])
        return min(left, len(data))


def test_a_part_of_an_answer_is_no_success(monkeypatch):
    """With PYTHONUNBUFFERED, a record of 5 MB on a disk with room for 1 MB was cut off with exit code 0."""
    disk = AlmostFull(room=3)
    unbuffered = io.TextIOWrapper(disk, "utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", unbuffered)
    entry._buffer_output()
    with pytest.raises(OutputError, match="No space left"):
        sys.stdout.write("answer\n")
    assert disk.content == b"ans"
    monkeypatch.setattr(disk, "_room", 100)
    sys.stdout.buffer.flush()
    assert disk.content == b"answer\n"


@pytest.mark.parametrize("words", [["version"], ["version", "--json"], ["--help"]], ids=" ".join)
def test_a_full_disk_is_one_line_and_exit_code_1(words):
    """The answer was lost with a traceback, or with exit code 0 or 120."""
    command = [sys.executable, "-m", "moldau_cli", *words]
    with open("/dev/full", "wb") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "cannot write the output: No space left on device" in run.stderr


def test_a_dump_to_a_full_disk_accuses_no_file(tmp_path, monkeypatch, capsys):
    """``log dump FILE > /dev/full`` said that the file could not be read."""
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    checkpoint.write_text("0\n0\n")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(AlmostFull(room=0)), "utf-8"))
    monkeypatch.setattr(entry, "_drop_output", lambda: None)
    entry._buffer_output()
    sys.stdout.reconfigure(line_buffering=True)
    assert main(["log", "dump", str(checkpoint)]) == 1
    assert capsys.readouterr().err == "moldau: cannot write the output: No space left on device\n"
    monkeypatch.setattr(entry._Answers, "write", lambda _, data: len(data))  # what is left goes nowhere
    sys.stdout.flush()


@pytest.mark.parametrize(
    ("node_id", "code", "line"),
    [("101", 0, "nodeId: 101\n"), ("x", 1, "meta.properties: damaged, invalid literal for int() with base 10: 'x'\n")],
)
def test_the_identity_of_a_controller_is_dumped(node_id, code, line, tmp_path, capsys):
    """Its file in good order was called damaged: the id of its directory is written in another way than a broker's."""
    identity = tmp_path / "meta.properties"
    directory_id = "7510eee2-008a-466e-beb0-e7b73bd3fdc9"
    identity.write_text(f"version=1\nnode.id={node_id}\ndirectory.id={directory_id}\nmetadata.quorum.engine=raft\n")
    assert main(["log", "dump", str(identity)]) == code
    answer = capsys.readouterr().out
    assert line in answer
    assert (f"directoryId: {directory_id}\nengine: raft\n" in answer) == (code == 0)


@pytest.mark.parametrize(
    ("words", "closed", "code", "text"),
    [
        (["version"], ">&-", 1, "moldau: cannot write the output: Bad file descriptor\n"),
        (["nonsense"], "2>&-", 2, ""),
        (["users", "add", "u"], "<&-", 2, "moldau: the password is empty: give it as one line on standard input\n"),
    ],
)
def test_a_closed_stream_is_no_traceback(words, closed, code, text):
    """The command ended in a traceback with exit code 1, and the next file got the number of the stream."""
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "moldau_cli", *words]
    run = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (code, "", text)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_characters_that_a_terminal_lacks_are_escaped(errors, monkeypatch):
    """A group with such an id ended ``groups list`` with a traceback, and ``groups delete`` after its work."""
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors=errors)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(entry, "main", lambda _: output.write_line("grüßt группу") or 0)
    with pytest.raises(SystemExit) as ended:
        entry.run()
    assert ended.value.code == 0
    assert terminal.buffer.getvalue() == "grüßt ".encode("latin-1") + b"\\u0433\\u0440\\u0443\\u043f\\u043f\\u0443\n"


@pytest.mark.parametrize("words", [["users", "add", "u"], ["tokens", "renew", "--hmac", "-"]], ids=" ".join)
def test_input_that_is_no_text_is_one_line(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    assert main([*words, "-b", "127.0.0.1:1"]) == 2
    assert "on standard input is not UTF-8 text" in capsys.readouterr().err


def test_headers_are_sent_as_they_are_given():
    """Blanks around a value were cut off, a name that repeats kept its last value, other bytes ended the command."""
    given = ["a=1", "a= 2 ", "b=x=y", "c=\udcff"]
    assert [_header(text) for text in given] == [("a", b"1"), ("a", b" 2 "), ("b", b"x=y"), ("c", b"\xff")]
    assert _given_bytes("k\udcff") == b"k\xff"


def test_tables_are_aligned():
    assert (
        table(["node_id", "state"], [["1", "running"], ["101", "-"]]) == "NODE ID  STATE\n1        running\n101      -"
    )


@pytest.mark.parametrize(
    ("words", "value", "said"),
    [
        (("topics", "list"), "x", "(--command-config: {file})"),
        (("consume", "t", "-X", "request.timeout.ms=y"), "x", ""),
        (("consume", "t", "-X", "request.timeout.ms=y"), "5", ""),
    ],
)
def test_a_wrong_value_of_a_file_names_the_file(words, value, said, tmp_path, capsys, monkeypatch):
    """Only if the value is the file's: an option may have given another one."""

    async def answers(*_):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(running, "check_reachable", answers)
    file = tmp_path / "c.properties"
    file.write_text(f"request.timeout.ms={value}\n")
    assert main([*words, "-b", "h:1", "--command-config", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert repr("x" if said else "y") in line
    assert (str(file) in line) == bool(said)
    assert line.endswith(said.format(file=file))
