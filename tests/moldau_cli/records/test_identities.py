"""Goal: a command takes no name of an application from its properties.

Method: whole commands at a broker that notes the commits of groups and the requests of producers.
"""

import pytest

from moldau.protocol.api import ApiKey
from support.client.socket_cluster import cluster
from support.commands import run_command


@pytest.fixture
def broker():
    with cluster() as fake:
        fake.add_topic("t")
        assert run_command("produce", "t", "-b", fake.bootstrap, given="a\nb\n").returncode == 0
        fake.requests.clear()
        yield fake


@pytest.fixture
def properties(tmp_path):
    """The file of an application."""
    path = tmp_path / "app.properties"
    path.write_text("group.id=app\ngroup.instance.id=app-1\ntransactional.id=app-1\nclient.id=app\n")
    return str(path)


def test_reading_commits_no_offsets_of_an_application(broker, properties):
    """``consume --exit`` committed the end of the topic, and the application passed over all records."""
    done = run_command("consume", "t", "-e", "--command-config", properties, "-b", broker.bootstrap)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\nb\n", "")
    assert broker.offsets == {}
    assert ApiKey.FIND_COORDINATOR not in {key for _, key, _ in broker.requests}


def test_the_group_of_the_option_counts(broker, properties):
    options = ("-g", "mine", "--from-beginning", "-c", "2", "--command-config", properties)
    done = run_command("consume", "t", *options, "-b", broker.bootstrap)
    assert (done.returncode, done.stdout) == (0, "a\nb\n")
    assert [group for group, _, _ in broker.offsets] == ["mine"]
    joins = [request for _, key, request in broker.requests if key == ApiKey.JOIN_GROUP]
    assert {request.group_instance_id for request in joins} == {None}


def test_writing_fences_no_application(broker, properties):
    """It took the transactional id, and ended with a traceback."""
    done = run_command("produce", "t", "--command-config", properties, "-b", broker.bootstrap, given="c\n")
    assert (done.returncode, done.stderr) == (0, "1 record acknowledged\n")
    begun = [request for _, key, request in broker.requests if key == ApiKey.INIT_PRODUCER_ID]
    assert {request.transactional_id for request in begun} == {None}


@pytest.mark.parametrize(
    ("command", "key", "option"),
    [
        ("consume", "group.id", "--group"),
        ("consume", "bootstrap.servers", "--bootstrap-server"),
        ("produce", "bootstrap.servers", "--bootstrap-server"),
        ("produce", "transactional.id", "--transactional-id"),
    ],
)
def test_a_name_has_its_option(broker, command, key, option):
    done = run_command(command, "t", "-X", f"{key}=app", "-b", broker.bootstrap)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"moldau: -X {key}: give {option} instead\n"
