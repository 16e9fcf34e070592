"""One suite for the three faces of the clients: trio, asyncio and ordinary threads.

Goal: the same calls have the same effects and raise the same errors in each face.
Method: the scenarios of ``support.client.face_scenarios`` run in each face against one real cluster, and in trio's also
against brokers in the simulation.
"""

import inspect
import os

import pytest

import moldau
import moldau.aio
import moldau.blocking
from moldau_jepsen.testing import cluster
from support.client.face_scenarios import SCENARIOS, values_cross_as_objects
from support.client.three_faces import ELSEWHERE, Face, created
from support.cluster.broker_cluster import BROKER_PORT, run_cluster

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def bootstrap():
    """Starts a cluster, unless the environment names one."""
    given = os.environ.get(ELSEWHERE)
    if given is not None:
        yield given
        return
    # A member that got no partition in its first heartbeat gets it in the next one, 5 seconds later by default.
    prompt = {f"group.share.{key}heartbeat.interval.ms": "500" for key in ("min.", "")}
    with cluster(brokers=1, controllers=1, links=False, settings=prompt) as local:
        yield local.bootstrap


@pytest.fixture(params=["trio", "asyncio", "blocking"])
def face(request, bootstrap):
    return Face(request.param, bootstrap)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_each_face_passes(face, scenario):
    async def main(face):
        await scenario(face, await created(face))

    face.run(main)


SIMULATED = [each for each in SCENARIOS if each is not values_cross_as_objects]
"""All but the one that asks a schema registry, over HTTP in real time."""


@pytest.mark.parametrize("scenario", SIMULATED, ids=lambda each: each.__name__)
def test_trio_passes_in_the_simulation(scenario):
    async def main(brokers):
        face = Face("trio", f"b1:{BROKER_PORT}", brokers.client_environment)
        await scenario(face, await created(face))

    run_cluster(main)


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "ShareConsumer", "Admin"])
def test_faces_have_the_same_calls(kind):
    """Names, parameters and defaults agree; what a face leaves out is listed here."""
    left_out = {
        "Producer": {
            "send_nowait",
            "send_columns",
            "send_encoded",
            "has_leader",
            "abandon",
            "undeliver_outcome",
            "fetch_schema",
            "watch",
        }
    }
    left_out |= {
        "Consumer": {"abandon", "poll_encoded"},
        "ShareConsumer": {"abandon", "put_back"},
        "Admin": set(),
    }

    def calls(home):
        found = inspect.getmembers(getattr(home, kind), inspect.isfunction)
        return {name: call for name, call in found if not name.startswith("_")}

    native = {name: call for name, call in calls(moldau).items() if name not in left_out[kind]}
    only_faces = "close" if kind == "Admin" else None
    for home in (moldau.aio, moldau.blocking):
        own = {name: call for name, call in calls(home).items() if name not in {"wait_delivery", only_faces}}
        assert own.keys() == native.keys()
        for name, call in own.items():
            if name == "offsets_to_commit":
                continue  # the faces' own buffers differ
            assert parameters(name, call) == parameters(name, native[name]), name


def parameters(name, call):
    """Returns kind and default of each parameter; only ``flush`` of a thread, which no scope cancels, has a limit."""
    found = inspect.signature(call).parameters.values()
    return {each.name: (each.kind, None if name == "flush" else each.default) for each in found}


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "ShareConsumer", "Admin"])
def test_faces_have_the_same_properties(kind):
    """Names agree; what a face leaves out is for the trio clients' own use, or in ``statistics``."""
    left_out = {
        "Producer": {"intake", "failure", "pending_bytes"},
        "Consumer": {"group_generation", "assignment_generation"},
    }

    def properties(home):
        found = inspect.getmembers(getattr(home, kind), lambda member: isinstance(member, property))
        return {name for name, _ in found if not name.startswith("_")}

    wanted = properties(moldau) - left_out.get(kind, set())
    assert [properties(home) for home in (moldau.aio, moldau.blocking)] == [wanted, wanted]
