"""The hardened pysyncobj holds where the stock library fails, in the same world, under the same judge.

The tests of the port (``raft/test_shell.py``) run on this engine too. More seeds: ``make campaign-pysyncobj``.
"""

import ast
import os
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import moldau_quorum
from moldau_quorum.log.pysyncobj.wire import decode, encode
from moldau_quorum.log.raft.envelope import PYSYNCOBJ_FORMAT, Envelope, MessageError, unseal
from support.proof import examples, proof_beyond
from support.raft import campaign as raft_campaign
from support.raft import hardened_pysyncobj as raft_pysyncobj
from support.raft import stock_pysyncobj as raft_stock_pysyncobj
from support.raft import world as raft_world
from support.raft.invariants import Violation

SEEDS, PARTS = 30, 30
MESSAGES = [
    {"type": "request_vote", "term": 3, "last_log_index": 7, "last_log_term": 2},
    {"type": "response_vote", "term": 3},
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 4,
        "entries": ((b"\x10x", 6, 2), (b"\x01", 7, 3)),
        "prevLogIdx": 5,
        "prevLogTerm": 2,
    },
    {"type": "snapshot", "term": 3, "index": 9, "piece": 1, "count": 2, "data": b"piece"},
    {"type": "snapshot_ack", "index": 9, "next": 1},
    {"type": "next_node_idx", "next_node_idx": 8, "reset": False, "success": True},
    {"type": "stale_term", "term": 4},
    {"type": "timeout_now", "term": 3},
]


@pytest.mark.parametrize("part", proof_beyond(1, range(PARTS)))
def test_hardened_library_breaks_no_invariant(part):
    for seed in range(part, SEEDS, PARTS):
        raft_campaign.run_seed(seed, **raft_pysyncobj.OPTIONS)


@pytest.mark.proof
def test_stock_library_is_convicted():
    """A node applies an entry that is not the committed one: what facts and the decision record say of the library."""
    rule, text = raft_stock_pysyncobj.convict(13)
    assert rule == "state-machine-safety"
    assert "applies" in text
    assert not raft_stock_pysyncobj.HOMES  # the files of the library are gone
    assert open_journals() == []


def open_journals():
    return [link for each in os.scandir("/proc/self/fd") if "moldau-stock-" in (link := os.readlink(each.path))]


def test_stock_library_is_acquitted_where_it_holds():
    """The stock library is not convicted where it holds, or where it breaks down by itself."""
    assert raft_stock_pysyncobj.convict(3) is None  # nothing happens to it
    assert raft_stock_pysyncobj.convict(1) is None  # it empties its journal, and fails to read the end of it
    assert open_journals() == [], "those that the exception held are closed as well"


def test_a_world_that_fails_both_libraries_convicts_none(monkeypatch):
    """A world that convicts the hardened library too convicts none."""

    def unjust(seed, **options):
        raise Violation(raft_world.World(1), "state-machine-safety", "on some node")

    monkeypatch.setattr(raft_stock_pysyncobj, "run_seed", unjust)
    with pytest.raises(Violation, match="on some node"):
        raft_stock_pysyncobj.convict(13)


def test_a_harness_that_breaks_is_no_acquittal(monkeypatch):
    monkeypatch.setattr(raft_stock_pysyncobj, "run_seed", lambda *_, **__: {}["gremlin"])
    with pytest.raises(KeyError, match="gremlin"):
        raft_stock_pysyncobj.convict(13)


def test_one_module_imports_the_library():
    root = pathlib.Path(moldau_quorum.__file__).parent
    importers = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.split(".")[0] == "pysyncobj" for name in names):
                importers.append(path.relative_to(root).as_posix())
    assert set(importers) == {"log/pysyncobj/library.py"}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["type"])
def test_messages_round_trip(message):
    envelope, payload_format, payload = unseal(encode(Envelope(1, 2), 3, 99, message))
    assert (envelope, payload_format) == (Envelope(1, 2), PYSYNCOBJ_FORMAT)
    assert decode(payload) == (3, 99, message)


PLAIN = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=30) | st.just(()) | st.just({})
)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_forged_messages_are_refused_or_sound(data):
    message = dict(data.draw(st.sampled_from(MESSAGES)))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.sampled_from([*message, "transmission"]))] = data.draw(PLAIN)
    try:
        _, _, decoded = decode((3, 99, message))
    except MessageError:
        return
    assert "transmission" not in decoded
    assert encode(Envelope(1, 2), 3, 99, decoded)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "apply_command", "command": b"x"},
        {"type": "append_entries", "term": 1, "commit_index": 1, "transmission": "finish", "data": b"pickle"},
        {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": (b"x", True, True)},
        {**MESSAGES[2], "entries": ((b"", 6, 2),)},
        {**MESSAGES[2], "entries": ((b"x", 7, 2),)},
        {**MESSAGES[3], "piece": 2},
    ],
)
def test_forms_that_carry_pickles_or_nonsense_are_refused(message):
    with pytest.raises(MessageError):
        decode((3, 99, message))
