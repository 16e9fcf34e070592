"""Goal: what a command writes into a file, another one reads. Method: the commands at a cluster in memory."""

import json

import pytest

from support.client.sample_admin import SampleAdmin
from support.client.transcripts import run_against


@pytest.fixture
def moldau():
    """Runs a command; returns its output, and the changes that it asked for."""

    def run(*words, code=0, refused=()):
        admin = SampleAdmin(refused)
        done = run_against(admin, *map(str, words))
        assert done.returncode == code, done
        return done, admin.changes

    return run


def test_offsets_are_exported_and_come_back(moldau, tmp_path):
    file = tmp_path / "offsets.csv"
    reset = ("groups", "reset", "idle", "--topic", "orders:0", "--topic", "logs")
    done, changes = moldau(*reset, "--to", "earliest", "--export", file, "--dry-run")
    assert changes == []
    assert file.read_text() == "logs,0,0\norders,0,3\n"
    shown, changes = moldau("groups", "reset", "idle", "--from-file", file)
    assert changes == [("alter_group_offsets", {"group_id": "idle", "offsets": {("logs", 0): 0, ("orders", 0): 3}})]
    assert shown.stdout == done.stdout
    file.write_text("orders,0,99\nnone,0,1\n")
    assert "there is no topic none" in moldau("groups", "reset", "idle", "--from-file", file, code=2)[0].stderr


@pytest.mark.parametrize(
    ("file", "code", "reason", "count"),
    [
        ("", 2, "Is a directory", 0),
        ("away/offsets.csv", 2, "No such file or directory", 0),
        ("file/offsets.csv", 2, "Not a directory", 0),
        ("/dev/full", 1, "No space left on device", 1),
    ],
)
def test_a_group_is_not_moved_for_an_impossible_export(moldau, tmp_path, file, code, reason, count):
    """The group was moved first; only a disk that is full is not known before."""
    (tmp_path / "file").touch()
    path = tmp_path / file
    done, changes = moldau("groups", "reset", "idle", "--topic", "logs", "--to", "latest", "--export", path, code=code)
    assert done.stderr == f"moldau: cannot write {path}: {reason}\n"
    assert len(changes) == count


@pytest.mark.parametrize(("file", "code"), [("/dev/full", 1), ("away/plan.json", 2)])
@pytest.mark.parametrize("command", ["reassign plan --brokers 1,2", "balance plan"])
def test_a_full_disk_is_no_wrong_usage(moldau, tmp_path, command, file, code):
    """Its exit code was 2, as for a directory that does not exist."""
    assert "cannot write" in moldau(*command.split(), "--out", tmp_path / file, code=code)[0].stderr


def test_a_plan_is_written_executed_and_verified(moldau, tmp_path):
    file = tmp_path / "plan.json"
    printed, _ = moldau("reassign", "plan", "--brokers", "1,2", "--topic", "logs", "--topic", "orders")
    done, _ = moldau("reassign", "plan", "--brokers", "1,2", "--topic", "logs", "--topic", "orders", "--out", file)
    assert done.stdout == f"plan written to {file}; moldau reassign execute {file}\n"
    assert file.read_text() == printed.stdout
    document, _ = moldau("reassign", "plan", "--brokers", "1,2", "--topic", "logs", "--topic", "orders", "--json")
    assert (document.stdout.count("\n"), json.loads(document.stdout)) == (1, json.loads(printed.stdout))
    plan = {(one["topic"], one["partition"]): one["replicas"] for one in json.loads(printed.stdout)["partitions"]}
    done, changes = moldau("reassign", "execute", file)
    assert done.stdout == f"started {len(plan)} moves; moldau reassign status\n"
    assert changes == [("alter_partition_reassignments", {"targets": plan})]
    done, changes = moldau("reassign", "execute", file, "--json", refused=["logs-0"], code=1)
    assert json.loads(done.stdout) == {"moves": len(plan) - 1, "throttle": None}
    assert "not moved: logs-0: not allowed" in done.stderr
    done, _ = moldau("reassign", "verify", file, "--json", code=1)
    moves = {(one["topic"], one["partition"]): one["state"] for one in json.loads(done.stdout)["moves"]}
    assert moves.keys() == plan.keys()
    assert set(moves.values()) == {"different"}, "they neither run nor are done"
    assert json.loads(done.stderr)["error"] == f"{len(plan)} of {len(plan)} moves are not done"
    unwritable = moldau("reassign", "plan", "--brokers", "1,2", "--out", tmp_path, code=2)[0]
    assert unwritable.stderr == f"moldau: cannot write {tmp_path}: Is a directory\n"


def test_moves_that_are_done_or_gone_are_no_failure(moldau, tmp_path):
    file = tmp_path / "plan.json"
    entries = [{"topic": "logs", "partition": 0, "replicas": [2]}, {"topic": "none", "partition": 0, "replicas": [1]}]
    file.write_text(json.dumps({"version": 1, "partitions": entries}))
    done, changes = moldau("reassign", "verify", file)
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["logs", "0", "2", "done"],
        ["none", "0", "1", "gone"],
    ]
    assert changes == []
    file.write_text('{"version": 1, "partitions": []}')
    done, changes = moldau("reassign", "execute", file)
    assert (done.stdout, changes) == ("started 0 moves; moldau reassign status\n", [])


def test_records_are_deleted_as_a_file_says(moldau, tmp_path):
    file = tmp_path / "delete.json"
    entries = [{"topic": "orders", "partition": 1, "offset": -1}, {"topic": "logs", "partition": 0, "offset": 0}]
    file.write_text(json.dumps({"version": 1, "partitions": entries}))
    done, changes = moldau("topics", "delete-records", "--file", file)
    assert changes == [("delete_records", {"before": {("orders", 1): -1, ("logs", 0): 0}})]
    assert done.stdout.splitlines()[1:] == ["logs    0          4", "orders  1          4"]


@pytest.mark.parametrize("name", ["c.properties", "c.toml"])
def test_options_count_before_the_file_of_settings(moldau, tmp_path, name):
    file = tmp_path / name
    quote = '"' if name == "c.toml" else ""
    file.write_text(f"{quote}retention.ms{quote}=1\n{quote}segment.bytes{quote}=2\n")
    done, changes = moldau(
        *("configs", "alter", "--entity-name", "orders", "--add-config-file", file, "--add-config", "retention.ms=3")
    )
    assert done.stdout == "changed retention.ms, segment.bytes of orders\n"
    ((_, given),) = changes
    (alterations,) = given["changes"].values()
    assert {one.name: one.value for one in alterations} == {"retention.ms": "3", "segment.bytes": "2"}
    file.write_bytes(b"\xff")
    assert (
        "cannot read"
        in moldau(*("configs", "alter", "--entity-name", "t", "--add-config-file", file), code=2)[0].stderr
    )


def test_a_balance_is_written_as_a_plan(moldau, tmp_path):
    file = tmp_path / "balance.json"
    done, _ = moldau("balance", "plan", "--out", file)
    assert done.stderr == f"plan written to {file}; moldau balance execute {file}\n"
    assert json.loads(file.read_text()) == json.loads(moldau("balance", "plan", "--json")[0].stdout)["plan"]
