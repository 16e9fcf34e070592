"""Goal: with --login each session has the rights of its user, and of no other.

Method: the sessions of a console in front of a simulated cluster with SASL and ACLs; alice may describe one topic.
"""

import pytest
import trio

from moldau.admin import Acl, Admin, NewTopic
from moldau.protocol.errors import KafkaError
from moldau_cli.console.app import problem
from moldau_cli.console.pages import QUESTIONS, Question
from moldau_cli.console.sessions import LOGIN_TIMEOUT_S, LoginError, Sessions
from support.cluster.broker_cluster import run_cluster

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
NODE = f'{SCRAM} username="node" password="node-secret";'
SETTINGS = {
    "listeners": "INSIDE://:9094,OUTSIDE://:9092",
    "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OUTSIDE:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
    "sasl.scram.bootstrap.credentials": "SCRAM-SHA-256=[name=node,password=node-secret];"
    "SCRAM-SHA-256=[name=alice,password=alice-secret]",
    "listener.name.controller.sasl.jaas.config": NODE,
    "listener.name.inside.sasl.jaas.config": NODE,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node",
    "default.replication.factor": "1",
}
OPEN = {"bootstrap.servers": "b1:9092", "security.protocol": "SASL_PLAINTEXT"}


async def asked(session, question, **parameters):
    """Returns the answer to a question, or status and text of its refusal."""
    whole = Question(identity=session.identity, parameters=parameters, local=None, avro=None)
    try:
        return await QUESTIONS[question](whole)
    except KafkaError as error:
        return problem(error)


async def scenario(cluster):
    environment, seen = cluster.client_environment, {}
    node = {**OPEN, "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "node", "sasl.password": "node-secret"}
    async with Admin(node, environment=environment) as admin:
        await admin.create_topics([NewTopic(name=name, partitions=1) for name in ("bare", "open", "secret")])
        rights = [Acl(resource="topic", name="open", principal="User:alice", operation="read")]
        rights.append(Acl(resource="topic", name="open", principal="User:alice", operation="describe-configs"))
        rights.append(Acl(resource="topic", name="bare", principal="User:alice", operation="read"))
        await admin.create_acls(rights)
    async with trio.open_nursery() as nursery:
        sessions = Sessions(nursery, OPEN, shared=None, token=None, environment=environment)
        assert sessions.wants_login
        for user, password, mechanism in (
            ("alice", "wrong", "SCRAM-SHA-256"),
            ("mallory", "alice-secret", "SCRAM-SHA-256"),
            ("", "", "SCRAM-SHA-256"),
            ("alice", "alice-secret", "GSSAPI"),
        ):
            began = trio.current_time()
            with pytest.raises(LoginError):
                await sessions.open(token="", user=user, password=password, mechanism=mechanism)
            assert trio.current_time() - began < LOGIN_TIMEOUT_S
        alice = await sessions.open(token="", user="alice", password="alice-secret", mechanism="SCRAM-SHA-256")
        root = await sessions.open(token="", user="node", password="node-secret", mechanism="SCRAM-SHA-256")
        for name, session in (("alice", alice), ("node", root)):
            seen[name, "topics"] = [row["topic"] for row in (await asked(session, "topics"))["rows"]]
            seen[name, "topic"] = await asked(session, "topic", name="secret")
            seen[name, "bare"] = await asked(session, "topic", name="bare")
            seen[name, "acls"] = await asked(session, "acls")
            seen[name, "messages"] = await asked(session, "messages", topic="secret")
        seen["separate"] = alice.identity is not root.identity
        seen["text"] = repr(alice)
        sessions.close(alice)
        await trio.sleep(1)
        seen["closed"] = sessions.find(alice.key), sessions.find(root.key) is root
        nursery.cancel_scope.cancel()
    return seen


@pytest.fixture(scope="module")
def seen():
    return run_cluster(scenario, seed=3, **SETTINGS)[0]


def test_a_user_sees_what_its_rights_allow(seen):
    assert seen["alice", "topics"] == ["bare", "open"]
    assert set(seen["node", "topics"]) == {"bare", "open", "secret"}
    assert seen["node", "topic"]["topic"] == "secret"


def test_a_topic_is_shown_without_the_right_to_its_configuration(seen):
    """A user that may read a topic, and no more, got an error in place of its page."""
    page = seen["alice", "bare"]
    assert (len(page["rows"]), page["configs"], page["min_isr"]) == (1, None, None)
    reasons = dict(note.rsplit(" ", 1) for note in page["notes"])
    assert set(reasons.values()) == {"(CLUSTER_AUTHORIZATION_FAILED)", "(TOPIC_AUTHORIZATION_FAILED)"}
    assert seen["node", "bare"]["min_isr"] == 1
    assert seen["node", "bare"]["notes"] == []


@pytest.mark.parametrize("question", ["topic", "acls", "messages"])
def test_forbidden_views_are_refused(seen, question):
    status, text = seen["alice", question]
    assert status == 403
    assert "does not allow it" in text


def test_acls_are_listed_with_the_right_to_see_them(seen):
    (*_, last) = [row for row in seen["node", "acls"]["rows"] if row["principal"] == "User:alice"]
    assert (last["resource"], last["name"], last["permission"]) == ("topic", "open", "allow")


def test_sessions_have_clients_of_their_own(seen):
    assert seen["separate"]
    assert seen["closed"] == (None, True)


def test_no_text_of_a_session_holds_the_password(seen):
    """Error messages and logs may show a session."""
    assert "secret" not in seen["text"]
