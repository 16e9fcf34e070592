"""Goal: an interrupted start of nodes leaves none without a number, and mixes up no later ones.

Method: pipes in place of the process that forks nodes; a signal whose handler raises, as that of Ctrl-C does.
"""

import json
import os
import signal
import sys
import threading

import pytest

from moldau_jepsen.launcher import process
from moldau_jepsen.launcher.forks import NodeForks, _Server, _variables
from moldau_jepsen.launcher.spec import Node


class Interruption(BaseException):
    """The exception that the handler of the signal raises."""


def node(number):
    return Node(node_id=number, role="broker", port=1, directory="", config=f"{number}.properties", log="")


@pytest.fixture
def forks(monkeypatch):
    """Forks whose process interrupts the main thread at the first request, and answers it then."""
    requested, requests = os.pipe()
    answers, answered = os.pipe()

    has_interrupted = threading.Event()

    def interrupt(number, frame):
        if not has_interrupted.is_set():
            has_interrupted.set()
            raise Interruption

    def serve():
        with os.fdopen(requested) as lines:
            for line in lines:
                (words,) = json.loads(line)["nodes"]
                number = int(words[0].removesuffix(".properties"))
                if number == 1:
                    # Python runs the handler of a signal that comes right before a wait only after that.
                    while not has_interrupted.wait(0.05):
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                os.write(answered, f"{1000 + number}\n".encode())

    before = signal.signal(signal.SIGUSR1, interrupt)
    server = threading.Thread(target=serve)
    server.start()
    made = NodeForks()
    made._server = _Server(os.getpid(), 0, sys.executable, _variables(), requests, answers)
    monkeypatch.setattr(process, "_FORKS", made)
    yield made
    os.close(requests)
    server.join()
    for descriptor in (answers, answered):
        os.close(descriptor)
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_start_mixes_up_no_nodes(forks, monkeypatch):
    """The next start took the numbers of the interrupted one for its own, so its faults hit other processes."""
    monkeypatch.setattr(process, "start_mark", lambda pid: f"mark of {pid}")
    first, second = node(1), node(2)
    with pytest.raises(Interruption):
        process.spawn_all([first], tied_to_parent=True)
    process.spawn_all([second], tied_to_parent=True)
    assert (second.pid, second.started) == (1002, "mark of 1002")
    assert (first.pid, first.started) == (1001, "mark of 1001"), "it runs, so the end of its cluster has to end it"
