"""Goal: commands of daily use work on a real cluster. Method: one small cluster; commands run in this process."""

import io
import json
import sys

import pytest

from moldau_cli.commands.watching import top as top_command
from moldau_jepsen.testing import cluster
from support.commands import run_command
from support.interop.clients import wait_until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def local():
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with cluster(brokers=1, controllers=1, links=False, settings=settings) as running:
        yield running


@pytest.fixture
def shell(local, tmp_path):
    def run(*arguments, given="", code=0):
        done = run_command(*arguments, "-b", local.bootstrap, given=given, cwd=tmp_path)
        assert done.returncode == code, done
        return done

    def run_json(*arguments, **more):
        return json.loads(run(*arguments, "--json", **more).stdout)

    run.json, run.home = run_json, tmp_path
    return run


def test_a_log_that_ends_in_a_marker_is_read_to_its_end(shell):
    """The end of such a log is behind a transaction marker, which no batch of records shows."""
    shell("topics", "create", "marked", "--partitions", "1")
    shell("produce", "marked", "--transactional-id", "t1", "--transaction-size", "2", given="a\nb\nc\n")
    assert shell("consume", "marked", "-e").stdout == "a\nb\nc\n"
    assert shell("consume", "marked", "-e", "--isolation-level", "read_committed").stdout == "a\nb\nc\n"
    (row,) = shell.json("offsets", "marked")["partitions"]
    assert (row["earliest"], row["latest"]) == (0, 5), "two markers have offsets too"


def test_a_partition_that_a_topic_lacks_is_refused_at_once(shell):
    """The producer would wait for it for ``max.block.ms``."""
    shell("topics", "create", "narrow", "--partitions", "2")
    done = shell("produce", "narrow", "-p", "2", given="a\n", code=2)
    assert done.stderr == "moldau: topic narrow has partitions 0 to 1, not 2\n"
    shell("produce", "narrow", "-p", "1", given="a\n")


def test_a_wrong_line_aborts_its_transaction(shell):
    shell("topics", "create", "aborted", "--partitions", "1")
    options = ("--transactional-id", "t2", "--value-format", "integer")
    done = shell("produce", "aborted", *options, given="1\nx\n", code=2)
    assert "acknowledged" not in done.stderr
    assert shell("consume", "aborted", "-e", "--isolation-level", "read_committed").stdout == ""


def test_topics_are_chosen_by_an_expression(shell):
    for name in ("chosen-1", "chosen-2", "unchosen-1"):
        shell("topics", "create", name, "--partitions", "1")
    listed = shell.json("topics", "list", "--include", "chosen-[0-9]")["topics"]
    assert [one["topic"] for one in listed] == ["chosen-1", "chosen-2"]
    described = shell.json("topics", "describe", "--include", ".*chosen-1")["partitions"]
    assert [one["topic"] for one in described] == ["chosen-1", "unchosen-1"]
    assert shell.json("topics", "describe", "--include", "none")["partitions"] == []
    altered = shell.json("topics", "alter", "--include", "chosen-.", "--partitions", "3")["topics"]
    assert altered == [{"topic": name, "partitions": 3} for name in ("chosen-1", "chosen-2")]
    trial = shell.json("topics", "delete", "--include", "chosen-.", "--dry-run")
    assert trial == {"deleted": ["chosen-1", "chosen-2"], "dry_run": True}
    assert shell.json("topics", "delete", "--include", "chosen-.")["deleted"] == ["chosen-1", "chosen-2"]
    assert [one["topic"] for one in shell.json("topics", "list", "--include", ".*chosen.*")["topics"]] == ["unchosen-1"]
    assert shell.json("topics", "delete", "--include", "chosen-.")["deleted"] == []
    assert "either names or --include" in shell("topics", "delete", "unchosen-1", "--include", "x", code=2).stderr
    assert "either names or --include" in shell("topics", "alter", "--partitions", "4", code=2).stderr
    assert "is not a regular expression" in shell("topics", "list", "--include", "(", code=2).stderr
    assert "exclude each other" in shell("topics", "describe", "chosen-1", "--include", "x", code=2).stderr


def test_offsets_by_time_and_kind(shell):
    shell("topics", "create", "timed", "--partitions", "2")
    lines = "".join(json.dumps({"value": str(at), "timestamp": at, "partition": 0}) + "\n" for at in (1000, 9000, 5000))
    shell("produce", "timed", "--input", "jsonl", given=lines)

    def shown(*arguments):
        return [(row["partition"], row["offset"], row["timestamp"]) for row in shell.json(*arguments)["partitions"]]

    assert shown("offsets", "timed", "--time", "earliest") == [(0, 0, None), (1, 0, None)]
    assert shown("offsets", "timed:0", "--time", "latest") == [(0, 3, None)]
    assert shown("offsets", "timed:0", "--time", "-3") == [(0, 1, 9000)]
    assert shown("offsets", "timed:0", "-t", "2000") == [(0, 1, 9000)]
    assert shown("offsets", "timed", "--time", "10000") == [(0, None, None), (1, None, None)]
    assert shell("offsets", "timed:0").stdout.splitlines()[1].split() == [
        *("timed", "0", "0", "3", "3", "1"),
        "1970-01-01T00:00:09.000Z",
    ]
    assert shown("offsets", "timed:0", "--time", "earliest-local") == [(0, 0, None)]
    assert shown("offsets", "timed:0", "--time", "latest-tiered") == [(0, None, None)]
    (row,) = shell.json("offsets", "timed:0", "--tiered")["partitions"]
    assert (row["earliest_local"], row["latest_tiered"], row["only_tiered"], row["only_local"]) == (0, None, 0, 3)
    assert "give one of them" in shell("offsets", "timed", "--tiered", "-t", "latest", code=2).stderr
    assert "timed has partitions 0 to 1, not 7" in shell("offsets", "timed:7", code=2).stderr
    assert "--time: expected a time" in shell("offsets", "timed", "-t", "noon", code=2).stderr


def test_groups_are_watched_with_rates(shell):
    shell("topics", "create", "watched", "--partitions", "1")
    shell("produce", "watched", given="a\nb\nc\n")
    shell("groups", "reset", "w", "--topic", "watched", "--to-offset", "1", "--create")
    done = shell("groups", "describe", "w", "--watch", "0.1", "--times", "2", "--json")
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["group"], each["state"], each["lag"]) for each in looks] == [("w", "Empty", 2)] * 2
    first, second = (each["partitions"][0] for each in looks)
    assert (first["lag"], first["consumed_per_s"]) == (2, None)
    assert (second["lag"], second["consumed_per_s"], second["produced_per_s"]) == (2, 0.0, 0.0)
    assert shell.json("groups", "describe", "w")["lag"] == 2
    assert shell("groups", "describe", "w").stdout.splitlines()[0].endswith("lag 2")
    assert [
        row["group"] for row in shell.json("groups", "list", "--state", "Empty", "--type", "classic")["groups"]
    ] == ["w"]
    assert shell.json("groups", "list", "--state", "Stable") == {"groups": []}
    assert "CONSUMED PER S" in shell("groups", "describe", "w", "-w", "0.1", "--times", "1").stdout
    assert "--times needs --watch" in shell("groups", "describe", "w", "--times", "1", code=2).stderr
    shell("groups", "reset", "v", "--topic", "watched", "--to", "latest", "--create")
    lags = {one["group"]: one["lag"] for one in shell.json("groups", "describe", "--all-groups")["groups"]}
    assert {name: lags[name] for name in "vw"} == {"v": 0, "w": 2}
    assert "group v: " in shell("groups", "describe", "--all-groups").stdout
    for words in ((), ("w", "--all-groups"), ("--all-groups", "--watch", "1")):
        shell("groups", "describe", *words, code=2)


def test_topics_are_filtered_and_made_with_assignments(shell):
    shell("topics", "create", "placed", "--replica-assignment", "1,1", "--config", "retention.ms=7200000")
    wait_until(lambda: shell.json("topics", "describe", "placed")["partitions"][1:], "the topic is known")
    for option in ("--under-replicated-partitions", "--under-min-isr-partitions", "--unavailable-partitions"):
        assert shell.json("topics", "describe", "placed", option) == {"partitions": []}
    assert len(shell.json("topics", "describe", "placed", "--at-min-isr-partitions")["partitions"]) == 2
    (row,) = shell.json("topics", "describe", "placed", "missing", "--if-exists", "--topics-with-overrides")["topics"]
    assert (row["topic"], row["partitions"], row["configs"]) == ("placed", 2, ["retention.ms=7200000"])
    assert shell.json("topics", "delete", "placed", "missing", "--if-exists") == {"deleted": ["placed"]}
    assert "there is no topic" in shell("topics", "alter", "missing", "--partitions", "2", "--if-exists").stdout
    both = ("--under-replicated-partitions", "--at-min-isr-partitions")
    assert "exclude each other" in shell("topics", "describe", *both, code=2).stderr


def test_status_judges_the_cluster_that_is_named(local, tmp_path, monkeypatch):
    """Without a local cluster, the environment or a profile names the one to judge."""
    environment = {"MOLDAU_BOOTSTRAP": local.bootstrap}
    named = run_command("cluster", "status", "--json", cwd=tmp_path, environment=environment)
    assert json.loads(named.stdout)["brokers"] == 1
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "MOLDAU_PROFILE": "here"}
    run_command("profile", "add", "here", "-b", local.bootstrap, environment=home)
    assert json.loads(run_command("cluster", "status", "--json", cwd=tmp_path, environment=home).stdout)["brokers"] == 1
    assert run_command("cluster", "status", cwd=tmp_path).returncode == 2
    # The settings of the profile in use come with its address.
    monkeypatch.delenv("MOLDAU_PROFILE")
    home = {"XDG_CONFIG_HOME": str(tmp_path / "other")}
    run_command("profile", "add", "sealed", "-b", local.bootstrap, "-X", "security.protocol=SSL", environment=home)
    judged = run_command("cluster", "status", cwd=tmp_path, environment=home)
    assert "does not speak TLS" in judged.stderr


def test_top_shows_rates_in_batches(shell):
    shell("topics", "create", "shown", "--partitions", "1")
    shell("produce", "shown", given="a\nb\n")
    document = shell.json("top", "--once", "-d", "0.1")
    assert document["offline"] == 0
    assert document["brokers"][0]["broker"] == 1
    assert {"shown"} <= {row["topic"] for row in document["topics"]}
    assert document["records_per_s"] is not None
    plain = shell("top", "--count", "1", "--groups", "0", "--rows", "1").stdout
    assert plain.startswith("all partitions in sync; 1 broker, ")
    assert "BROKER  ADDRESS" in plain


def test_top_fills_a_terminal(local, shell, monkeypatch):
    """The screen is that of rich's alternate buffer; the view ends after its first look."""
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True, raising=False)

    async def first_view(collector, first, interval_s, views, show, skipped=0):
        from moldau_cli.live.core.samples import Views

        show(Views().view(first))

    monkeypatch.setattr(top_command, "_watch", first_view)
    monkeypatch.setenv("TERM", "xterm-256color")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", written)
        from moldau_cli.main import main

        assert main(["top", "-b", local.bootstrap]) == 0
    assert written.getvalue().startswith("\x1b[?1049h"), "the alternate screen"
    assert "all partitions in sync; 1 broker" in written.getvalue()
    assert written.getvalue().rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in written.getvalue()


def test_apis_of_brokers_are_shown(shell):
    rows = {row["api"]: row for row in shell.json("brokers", "api-versions")["api_versions"]}
    assert rows["Produce"]["broker"] == 1
    assert (rows["Fetch"]["key"], rows["Fetch"]["used"]) == (1, rows["Fetch"]["max"])
    assert "ListTransactions" in shell("brokers", "api-versions", "--broker", "1").stdout
    assert "no live broker 7" in shell("brokers", "api-versions", "--broker", "7", code=1).stderr


def test_directories_are_filtered_by_topic(shell):
    shell("topics", "create", "kept", "--partitions", "2")
    (row,) = shell.json("logdirs", "describe", "--topic", "kept")["log_dirs"]
    assert (row["state"], row["partitions"]) == ("online", 2)
    parts = shell.json("logdirs", "describe", "--topic", "kept", "--partitions")["partitions"]
    assert [(part["topic"], part["partition"]) for part in parts] == [("kept", 0), ("kept", 1)]
    assert "nowhere" in shell("logdirs", "describe", "--topic", "nowhere", code=2).stderr
    assert (
        "has no log directory /nowhere; it has"
        in shell("logdirs", "move", "kept", "--broker", "1", "--to", "/nowhere", code=2).stderr
    )
    missing = shell("logdirs", "move", "kept", "--broker", "1", "--partition", "5", "--to", row["path"], code=2)
    assert "broker 1 has no replica of kept-5" in missing.stderr


def test_a_deletion_says_what_was_deleted_and_what_not(shell):
    """One of the names cannot be deleted: the answer has the others, the error this one."""
    for name in ("gone-1", "gone-2"):
        shell("topics", "create", name, "--partitions", "1")
    done = shell("topics", "delete", "gone-1", "never-made", "gone-2", code=2)
    assert done.stdout == "deleted gone-1, gone-2\n"
    assert done.stderr.startswith("moldau: not deleted: never-made: ")
    assert "a topic is named twice" in shell("topics", "delete", "x", "x", code=2).stderr

    shell("topics", "create", "held", "--partitions", "2")
    for group in ("gone-a", "gone-b"):
        shell("groups", "reset", group, "--topic", "held", "--to", "latest", "--create")
    done = shell("groups", "delete", "never-used", "gone-a", "gone-b", "--json", code=2)
    assert json.loads(done.stdout) == {"deleted": ["gone-a", "gone-b"]}
    assert "not deleted: never-used: " in done.stderr
    for command in ("groups", "share-groups", "streams-groups"):
        assert "a group is named twice" in shell(command, "delete", "x", "x", code=2).stderr
    assert "no group was deleted" in shell("share-groups", "delete", "never-used", code=2).stderr

    shell("produce", "held", "--partition", "0", given="a\nb\n")
    (tmp_file := shell.home / "plan.json").write_text(
        json.dumps({"partitions": [{"topic": "held", "partition": at, "offset": 1} for at in (0, 1)], "version": 1})
    )
    done = shell("topics", "delete-records", "--file", str(tmp_file), code=2)
    assert done.stdout.split() == ["TOPIC", "PARTITION", "LOG", "START", "OFFSET", "held", "0", "1"]
    assert "held-1: expected an offset from 0 to 0, not 1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topics", "describe", ""), "one of names is empty"),
        (("topics", "create", ""), "the name of a topic is empty"),
        (("groups", "describe", ""), "one of group_ids is empty"),
        (("users", "remove", ""), "user is empty"),
        (("txns", "describe", ""), "one of transactional_ids is empty"),
        (("tokens", "create", "--renewer-principal", "scheduler"), "the form User:name"),
        (("tokens", "describe", "--owner-principal", "alice"), "the form User:name"),
        (("tokens", "expire", "--hmac", "secret!"), "secret in base64"),
        (("topics", "create", "wide", "--partitions", str(2**31)), "must be between -2**31 and 2**31 - 1"),
        (("features", "upgrade", "--feature", "metadata.version=99999"), "must be between -2**15 and 2**15 - 1"),
    ],
)
def test_impossible_arguments_are_refused_at_once(shell, arguments, words):
    done = shell(*arguments, code=2)
    assert done.stdout == ""
    assert words in done.stderr
    assert (done.stderr.startswith("moldau: "), done.stderr.count("\n")) == (True, 1)


def test_a_misspelt_key_is_not_reset(shell):
    shell("topics", "create", "kept-for-an-hour", "--config", "retention.ms=3600000")
    alter = ("configs", "alter", "--entity-name", "kept-for-an-hour")
    done = shell(*alter, "--delete-config", "retention.m", code=2)
    assert "topics have no configuration 'retention.m'; did you mean retention.ms?" in done.stderr
    for _ in range(2):  # resetting twice is no error
        shell(*alter, "--delete-config", "retention.ms")


@pytest.mark.parametrize(
    ("entity", "misspelt", "owners", "right"),
    [
        ("groups", "consumer.session.timeout", "groups have", "consumer.session.timeout.ms"),
        ("client-metrics", "interval.m", "client metrics have", "interval.ms"),
    ],
)
def test_a_misspelt_key_of_others_is_not_reset(shell, entity, misspelt, owners, right):
    """Neither the group nor the subscription exists: keys are known all the same."""
    alter = ("configs", "alter", "--entity-type", entity, "--entity-name", "absent", "--delete-config")
    done = shell(*alter, misspelt, code=2)
    assert f"{owners} no configuration {misspelt!r}; did you mean {right}?" in done.stderr
    shell(*alter, right)
