"""Goal: image, compose file and Kubernetes objects agree with each other, with the configuration and the command line.

Method: the files are parsed; each node's configuration is computed as its container would, and given to the parser of
the server. Tools (kubectl) look at the files as well, where they are installed.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from moldau.implementation import PURE_PYTHON_VARIABLE
from moldau.records import IMPLEMENTATION
from moldau.runtime.config import (
    BROKER_CONFIG,
    advertised_listeners,
    listeners,
    log_dirs,
    metrics_listener,
    parse_server_config,
    quorum_voters,
)
from moldau.runtime.ports.descriptors import COMFORTABLE
from moldau_cli.errors import EXIT_USAGE
from moldau_cli.nodes.server_words import parse_words
from moldau_cli.nodes.watchdog import BEATS_PER_LIMIT

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "container" / "Containerfile").read_text()
UNIT = DEPLOY / "systemd" / "moldau@.service"
HEALTH = ("/health/live", "/health/ready")


def instruction(name):
    """The last value of an instruction of the Containerfile."""
    return re.findall(rf"^{name} (.+)$", CONTAINERFILE, re.MULTILINE)[-1]


def kubernetes():
    """All objects by kind and name."""
    return {
        (one["kind"], one["metadata"]["name"]): one
        for name in ("namespace", "controllers", "brokers")
        for one in yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())
    }


def kubernetes_nodes(stateful_set):
    """Yields host name and configuration of each pod of a stateful set."""
    objects = kubernetes()
    spec = stateful_set["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    for ordinal in range(spec["ordinals"]["start"], spec["ordinals"]["start"] + spec["replicas"]):
        name = f"{stateful_set['metadata']['name']}-{ordinal}"
        fields = {"metadata.name": name, "metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal)}
        environ = {}
        for variable in container["env"]:
            value = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            for known in list(environ):
                value = value.replace(f"$({known})", environ[known])
            environ[variable["name"]] = value
        mounted = {volume["name"]: volume["configMap"]["name"] for volume in pod["volumes"]}
        file = Path(parse_words(container["args"][1:])[0])
        mount = next(one for one in container["volumeMounts"] if one["mountPath"] == str(file.parent))
        text = objects["ConfigMap", mounted[mount["name"]]]["data"][file.name]
        yield f"{name}.{spec['serviceName']}.moldau.svc.cluster.local", parse_server_config(text, str(file), environ)


def stateful_sets():
    return [one for (kind, _), one in kubernetes().items() if kind == "StatefulSet"]


def test_the_image_runs_the_server_below_an_init():
    """A guard inside the container cannot kill process 1, so the node is another one."""
    command = yaml.safe_load(instruction("ENTRYPOINT")) + yaml.safe_load(instruction("CMD"))
    assert command[:4] == ["/usr/bin/tini", "--", "/opt/moldau/bin/moldau", "server"]
    assert parse_words(command[4:]) == ("/etc/moldau/node.properties", "info", "", False, None)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'"/source\[([\w,-]+)\]"', CONTAINERFILE)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    # Whatever a node looks for at run time is among them: it would be missing only when a client asks for it.
    assert {"console", "keystores", "oauth", "s3", "telemetry", "traces"} <= set(extras.split(","))
    (extras,) = re.findall(r"moldau\[([\w,-]+)\]", " ".join(project["optional-dependencies"]["telemetry"]))
    assert "regex" in extras.split(",")
    # Everything that the build reads is sent to it.
    sent = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["where"]
    assert {*packages, "pyproject.toml", "setup.py", "README.md", "LICENSE"} <= sent
    assert all((ROOT / name).exists() for name in sent)


def test_the_image_has_the_compiled_loops():
    """They are optional for an installation, and a base without a header would build an image of slow nodes."""
    check = re.search(r'^RUN /opt/moldau/bin/python -c "(.+)"$', CONTAINERFILE, re.MULTILINE)
    assert check
    assert CONTAINERFILE.index("pip install") < check.start() < CONTAINERFILE.rindex("\nFROM")
    for pure in ("0", "1"):
        environ = {**os.environ, PURE_PYTHON_VARIABLE: pure}
        done = subprocess.run([sys.executable, "-c", check[1]], env=environ, capture_output=True, text=True)
        missing = pure == "1" or IMPLEMENTATION == "python"
        assert ("ModuleNotFoundError" in done.stderr, done.returncode) == (missing, int(missing))


def test_limits_of_the_containers_suit_ordinary_users():
    """Podman and rootless Docker cannot raise a limit above the user's own, 524,288 where systemd sets it."""
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    assert [service["ulimits"]["nofile"] for service in compose["services"].values()] == [1 << 19] * 3


def test_compose_describes_three_nodes_of_one_cluster():
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    text = (DEPLOY / "compose" / "node.properties").read_text()
    exposed = set(map(int, instruction("EXPOSE").split()))
    hosts, addresses, published = {}, set(), []
    for host, service in compose["services"].items():
        config = parse_server_config(text, "node.properties", service["environment"])
        hosts[config.get_int("node.id")] = host
        bound = {endpoint.listener_name: endpoint.port for endpoint in listeners(config)}
        advertised = {one.listener_name: (one.host, one.port) for one in advertised_listeners(config)}
        assert advertised["INTERNAL"] == (host, bound["INTERNAL"])
        mapped = {int(inner): f"{ip}:{outer}" for ip, outer, inner in (one.split(":") for one in service["ports"])}
        external = advertised["EXTERNAL"]
        assert mapped[bound["EXTERNAL"]] == f"{external[0]}:{external[1]}"
        assert metrics_listener(config)[1] in mapped
        assert {*bound.values(), metrics_listener(config)[1]} - {bound["EXTERNAL"]} == exposed
        published += mapped.values()
        addresses.add(external)
        check = service["healthcheck"]["test"]
        url = re.search(r"http://127.0.0.1:(\d+)([\w/]+)", check[-1])
        assert (int(url[1]), url[2] in HEALTH) == (metrics_listener(config)[1], True)
        compile(check[-1], "healthcheck", "exec")
        files, data = (volume.split(":") for volume in service["volumes"])
        assert files[1] == "/etc/moldau/node.properties"
        assert data[0] in compose["volumes"]
        assert all(directory.startswith(f"{data[1]}/") for directory in log_dirs(config))
        assert {voter.port for voter in quorum_voters(config)} == {bound["CONTROLLER"]}
    assert {voter.node_id: voter.host for voter in quorum_voters(config)} == hosts
    assert len(addresses) == 3
    assert len(set(published)) == len(published)


def test_kubernetes_pods_have_usable_configurations():
    """Each pod's configuration parses; the voters are the pods of the controllers; ids are unique."""
    nodes = [(host, config) for one in stateful_sets() for host, config in kubernetes_nodes(one)]
    assert len({config.get_int("node.id") for _, config in nodes}) == len(nodes) == 6
    controllers = {
        (config.get_int("node.id"), host, listeners(config)[0].port)
        for host, config in nodes
        if config.get_list("process.roles") == ("controller",)
    }
    for host, config in nodes:
        assert {(voter.node_id, voter.host, voter.port) for voter in quorum_voters(config)} == controllers
        (bound,) = listeners(config)
        assert config.get_list("advertised.listeners") == (f"{bound.listener_name}://{host}:{bound.port}",)
        assert config.get_int("min.insync.replicas") == 2


@pytest.mark.parametrize("name", ["moldau-controllers", "moldau-brokers"])
def test_kubernetes_objects_fit_together(name):
    """Ports, probes, volumes, selectors and budgets of a stateful set."""
    objects = kubernetes()
    spec = objects["StatefulSet", name]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    _, config = next(kubernetes_nodes(objects["StatefulSet", name]))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(ports.values()) == {*(one.port for one in listeners(config)), metrics_listener(config)[1]}
    assert set(ports.values()) <= set(map(int, instruction("EXPOSE").split()))
    for probe in ("livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in HEALTH
        assert ports[asked["port"]] == metrics_listener(config)[1]
    assert "command" not in container, "the image's init must stay process 1"
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsUser"] == int(instruction("USER"))
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", "a start would go through all files"
    restricted = (pod["securityContext"], pod["containers"][0]["securityContext"])
    assert restricted[0]["runAsNonRoot"]
    assert restricted[0]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert restricted[1] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert instruction("VOLUME") in mounts
    assert all(directory.startswith(f"{instruction('VOLUME')}/") for directory in log_dirs(config))
    claimed = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == claimed | {one["name"] for one in pod["volumes"]}
    budget = objects["PodDisruptionBudget", name]["spec"]
    assert budget["maxUnavailable"] == 1
    assert spec["selector"]["matchLabels"] == budget["selector"]["matchLabels"] == labels
    services = [
        one
        for (kind, _), one in objects.items()
        if kind == "Service" and one["spec"]["selector"].items() <= labels.items()
    ]
    assert spec["serviceName"] in [service["metadata"]["name"] for service in services]
    for service in services:
        assert [ports[port["targetPort"]] for port in service["spec"]["ports"]] == [listeners(config)[0].port]


def seconds(text):
    """Reads a time of systemd or Docker, such as 120 or 120s."""
    return int(text.removesuffix("s"))


def test_stopping_nodes_have_the_same_time_everywhere():
    """A broker that is killed amid its controlled shutdown leaves partitions without a leader for seconds."""
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    unit = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    limits = {seconds(unit["TimeoutStopSec"])}
    limits |= {seconds(service["stop_grace_period"]) for service in compose["services"].values()}
    limits |= {one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for one in stateful_sets()}
    assert limits == {120}


def test_the_unit_runs_the_server_and_hears_it():
    """The unit expects what ``moldau server`` does; each key that differs would end or hide a healthy node."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    program, command, *words = unit["ExecStart"].split()
    assert (program, command, parse_words(words).path) == (
        "/opt/moldau/bin/moldau",
        "server",
        "/etc/moldau/%i.properties",
    )
    # The node says when it is ready, which may take as long as the repair of its logs, and then beats.
    assert (unit["Type"], unit["NotifyAccess"], unit["TimeoutStartSec"]) == ("notify", "main", "infinity")
    assert int(unit["WatchdogSec"]) * 1000 >= BEATS_PER_LIMIT * BROKER_CONFIG.key("node.watchdog.ms").default
    assert unit["WatchdogSignal"] == "SIGKILL", "a node that hangs handles no other signal"
    assert unit["KillMode"] == "mixed", "SIGTERM is for the node alone, and the rest of the group goes with it"
    # A node that ended comes back in any case but one: another start would refuse the same configuration.
    assert (unit["Restart"], int(unit["RestartPreventExitStatus"])) == ("always", EXIT_USAGE)
    assert int(unit["LimitNOFILE"]) >= COMFORTABLE


def test_unit_and_guide_agree_about_the_machine():
    """systemd gives its state directory a mode at each start: the 750 of the guide became 755, its default."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    guide = (ROOT / "docs" / "guides" / "operator.md").read_text()
    made = re.search(r"^install -d -o (\w+) -g (\w+) -m (\d+) /var/lib/(\w+)$", guide, re.MULTILINE)
    assert made is not None
    user, group, mode, directory = made.groups()
    assert (unit["User"], unit["Group"], unit["StateDirectory"]) == (user, group, directory)
    assert int(unit["StateDirectoryMode"], 8) == int(mode, 8)
    assert f"python3 -m venv {unit['ExecStart'].removesuffix('/bin/moldau server /etc/moldau/%i.properties')}" in guide


def test_pods_of_a_set_need_no_other_pod_to_start():
    """A quorum elects its first leader with a majority: pods that wait for each other's readiness wait for ever."""
    for name in ("moldau-controllers", "moldau-brokers"):
        objects = kubernetes()
        assert objects["StatefulSet", name]["spec"]["podManagementPolicy"] == "Parallel"
        own = objects["Service", name]["spec"]
        assert (own["clusterIP"], own["publishNotReadyAddresses"]) == ("None", True), "names of pods that are not ready"
    assert "publishNotReadyAddresses" not in kubernetes()["Service", "moldau-bootstrap"]["spec"]


def test_kustomize_accepts_the_objects():
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [kubectl, "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, check=True
    )
    built = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}
    assert built.keys() == kubernetes().keys()
    assert {one["metadata"].get("namespace", "moldau") for one in built.values()} == {"moldau"}


def test_the_kubernetes_objects_fit_their_schemas():
    """The schemas of a Kubernetes release allow each field and no other."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for one in kubernetes().values():
        validate.validate(one, validate.latest_version(), strict=True)
