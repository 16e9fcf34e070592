"""Goal: commands, code and settings on the pages work, and links lead somewhere.

Method: the ``sh`` blocks of a page run in one shell, in a directory of their own, as a reader would type them; its
``python`` blocks run in order against a cluster; its ``properties`` blocks are parsed. A block that cannot run
follows a comment ``<!-- not run: reason -->``. Relative links and anchors are looked up.
"""

import ast
import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from moldau.runtime.config import ADMIN_CONFIG, BROKER_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG, parse_config_text
from moldau_jepsen.testing import cluster
from support.commands import run_command
from support.pages import ADDRESS, FENCE, ROOT, blocks, name_of
from support.schema_registry import schema_registry
from support.started import shell_command

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
LONG_PAGES = {
    "docs/guides/command-line.md",
    "docs/guides/operator.md",
    "docs/guides/recovery.md",
    "docs/guides/scaling.md",
    "docs/guides/tiered-storage.md",
    "docs/guides/upgrades.md",
}
"""Their commands start, break and roll whole clusters; ``make test-proof`` runs them."""
DATED = {"CHANGELOG.md", "cost-of-a-seed.md", "findings.md", "rounds-1-to-13.md", "rounds-from-14.md", "run-log.md"}
"""They tell what was when they were written."""
LANGUAGES = {"sh", "python", "properties", "toml"}
INSTALLED = Path(sys.executable).parent
"""Where the environment keeps its commands."""
SHOWN = {"dockerfile", "json"}
"""Files that a page shows and no test runs; the line before each says why."""
PYTHON_PAGES = {
    "README.md",  # here
    "docs/guides/application.md",  # here
    "docs/guides/asyncio.md",  # here
    "docs/guides/frameworks.md",  # here
    "docs/guides/guarantees.md",  # here
    "docs/guides/tuning.md",  # here
    "docs/guides/migrating.md",  # here
    "docs/guides/processing.md",  # here
    "docs/guides/serializers.md",  # here
    "docs/guides/service.md",  # tests/moldau_jepsen/testing/test_tested_service.py
    "docs/guides/share-groups.md",  # here
    "docs/guides/data-engineer.md",  # tests/pyspark_moldau/test_spark_pages.py
    "docs/spark.md",  # tests/pyspark_moldau/test_spark_pages.py
    "docs/guides/simulate.md",  # here
    "docs/guides/tester.md",  # tests/moldau_jepsen/testing/test_plugin.py, test_plugin_reports.py
}


@pytest.mark.processes
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.proof if name_of(page) in LONG_PAGES else ())
        for page in PAGES
        if blocks(page, "sh")
    ],
    ids=name_of,
)
def test_commands_of_a_page_run(page, tmp_path):
    script = "set -euo pipefail\n" + "\n".join(blocks(page, "sh"))
    (tmp_path / "bin").mkdir()
    shell_command(tmp_path / "bin")
    folders = (tmp_path / "bin", INSTALLED, os.environ["PATH"])
    environment = {**os.environ, "PATH": os.pathsep.join(map(str, folders))}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    del environment["MOLDAU_PROFILE"]
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        if (tmp_path / "moldau-cluster").is_dir():
            run_command("cluster", "stop", cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_the_command_of_the_environment_is_that_of_the_pages():
    """Commands of pages run as forks; this is the file that a reader's shell finds."""
    done = subprocess.run([INSTALLED / "moldau", "version"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == run_command("version").stdout


@pytest.fixture(scope="module")
def local():
    """One cluster for the pages of clients: each has topics and groups of its own."""
    with cluster(brokers=1, controllers=1, links=False) as running:
        yield running


@pytest.mark.processes
def test_code_of_the_application_guide_runs(local, capsys):
    page = ROOT / "docs" / "guides" / "application.md"
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), {"BOOTSTRAP": local.bootstrap})
    assert "payments 0 0 b'25 EUR'" in re.sub(r"payments \d+ ", "payments 0 ", capsys.readouterr().out)


def test_code_of_the_guide_to_simulation_runs():
    """Its tests pass, the one that must find a bug included."""
    page = ROOT / "docs" / "guides" / "simulate.md"
    scope = {}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), scope)
    tests = [value for name, value in scope.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


@pytest.mark.processes
def test_code_of_the_asyncio_guide_runs(local, capsys):
    """The application of FastAPI serves one call within its lifespan."""
    page = ROOT / "docs" / "guides" / "asyncio.md"
    scope = {"BOOTSTRAP": local.bootstrap}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), scope)
    out = capsys.readouterr().out
    assert re.search(r"written at 0\norders \d+ 0 b'3 pianos'\nnothing arrived", out)
    assert "transformed 1" in out

    async def serve():
        async with scope["app"].router.lifespan_context(scope["app"]):
            return await scope["order"]("alice", "a violin")

    assert asyncio.run(serve()) == {"offset": 1}


@pytest.mark.processes
def test_code_of_serializers_and_processing_runs(local, capsys):
    pages = [ROOT / "docs" / "guides" / name for name in ("serializers.md", "processing.md")]
    with schema_registry() as registry:
        scope = {"BOOTSTRAP": local.bootstrap, "REGISTRY": registry.url}
        for page in pages:
            for code in blocks(page, "python"):
                exec(compile(code, str(page), "exec"), scope)
    assert capsys.readouterr().out.splitlines() == [
        "alice Order(item='pianos', count=3)",
        "{'carrier': 'UA', 'delay': 7}",
        "skipped b'no JSON'",
        "orders-to-pay.dead ValueError: no price",
        "processed 2 [30]",
        "sent 1 kafka 1.0",
        "traced b'25 EUR'",
    ]


@pytest.mark.processes
def test_code_of_share_groups_runs(local, capsys):
    page = ROOT / "docs" / "guides" / "share-groups.md"
    scope = {"BOOTSTRAP": local.bootstrap}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), scope)
    assert capsys.readouterr().out.splitlines() == [
        "worked on b'wash'",
        "worked on b'iron'",
        "rejected b'iron'",
        "accepted b'fold'",
        "b'tear' b'Offset rejected by client.'",
    ]


@pytest.mark.processes
def test_code_of_guarantees_and_tuning_runs(capsys, local):
    pages = [ROOT / "docs" / "guides" / name for name in ("guarantees.md", "tuning.md")]
    scope = {"BOOTSTRAP": local.bootstrap, "__name__": "guide"}
    for page in pages:
        for code in blocks(page, "python"):
            exec(compile(code, str(page), "exec"), scope)
    scope["test_an_announcement_arrives"](local.bootstrap)
    assert capsys.readouterr().out.splitlines() == [
        "deposited [b'10', b'20', b'30']",
        "transformed 3",
        "batches above 16 KiB: True",
    ]


@pytest.fixture
def kept_logging(monkeypatch):
    """Celery's worker takes the root logger for itself; this gives it back."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    level = root.level
    yield
    root.setLevel(level)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")  # the frameworks' own
def test_code_of_the_frameworks_guide_runs(local, capsys, monkeypatch, kept_logging):
    """Django serves a request and runs the command; a Celery worker runs a task; the cells run in one event loop."""
    page = ROOT / "docs" / "guides" / "frameworks.md"
    view, command, tasks, *cells = blocks(page, "python")
    module = types.ModuleType("orders_site")
    monkeypatch.setitem(sys.modules, "orders_site", module)
    scope = module.__dict__
    scope["BOOTSTRAP"] = local.bootstrap
    for code in (view, command, tasks):
        exec(compile(code, str(page), "exec"), scope)
    from celery.contrib.testing.worker import start_worker
    from django.test import RequestFactory

    request = RequestFactory().post("/orders/alice", {"item": "pianos"})
    assert json.loads(scope["order"](request, "alice").content) == {"offset": 0}
    scope["producer"]().close()
    former = signal.getsignal(signal.SIGTERM)
    try:
        scope["Command"]().handle()
    finally:
        signal.signal(signal.SIGTERM, former)  # the command has a process of its own, and leaves its handler
    with start_worker(scope["app"], perform_ping_check=False, pool="solo", loglevel="ERROR"):
        assert scope["announce"].delay("sale").get(timeout=60) == 0
    scope["worker_shutdown"].send(sender=None)  # a worker of the test support sends none
    assert scope["clients"] == {}

    async def run_cells():
        for code in cells:
            await eval(compile(code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), scope)

    asyncio.run(run_cells())
    assert capsys.readouterr().out == "ordered alice pianos\ncell 0\n"


@pytest.mark.processes
def test_code_of_the_migration_guide_runs(local, capsys):
    page = ROOT / "docs" / "guides" / "migrating.md"
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), {"BOOTSTRAP": local.bootstrap})
    assert capsys.readouterr().out == "ported 6\n"


@pytest.mark.processes
def test_code_of_the_readme_runs(local, capsys):
    producer, test, _spark = blocks(ROOT / "README.md", "python")
    exec(compile(producer.replace(ADDRESS, repr(local.bootstrap)), "README.md", "exec"), {})
    assert "RecordMetadata(topic='flights'" in capsys.readouterr().out
    given = []
    scope = {"run_my_code": lambda *, bootstrap_servers: given.append(bootstrap_servers)}
    exec(compile(test, "README.md", "exec"), scope)
    scope["test_my_pipeline"](local)
    assert given == [local.bootstrap]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "properties")], ids=name_of)
def test_settings_of_a_page_are_known(page):
    schemas = (BROKER_CONFIG, PRODUCER_CONFIG, CONSUMER_CONFIG, ADMIN_CONFIG)
    for text in blocks(page, "properties"):
        for name, value in parse_config_text(text, "page.properties").items():
            key = re.sub(r"^listener\.name\.\w+\.((plain|scram-sha-(256|512)|oauthbearer)\.)?", "", name)
            schema = next((schema for schema in schemas if key in schema.keys), None)
            assert schema is not None, f"{name} of {name_of(page)}"
            schema.parse_value(key, value)


def test_blocks_of_pages_run_or_say_why_not():
    for page in PAGES:
        text, name = page.read_text(), name_of(page)
        languages = [language for _, language, _ in FENCE.findall(text)]
        assert set(languages) <= LANGUAGES | SHOWN, name
        assert all(reason for reason, language, _ in FENCE.findall(text) if language in SHOWN), name
        assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(languages), f"{name}: a fence of another form"
        assert not blocks(page, "python") or name in PYTHON_PAGES, f"no test runs the Python of {name}"
        indented = re.search(r"^    (?:moldau|pip) [a-z]", FENCE.sub("", text), re.MULTILINE)
        assert not indented, f"{name}: put commands into sh blocks"


def anchor_of(title):
    """Returns the name that links use for a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def anchors_of(path):
    """Returns the names that links can point to on a page."""
    text = path.read_text()
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return set(map(anchor_of, titles)) | set(re.findall(r'<a id="([\w-]+)">', text))


def test_links_of_pages_lead_somewhere():
    anchors = {}
    for page in PAGES:
        text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
        for target, anchor in LINK.findall(text):
            if "://" in target or target.startswith("mailto:"):
                continue
            path = (page.parent / target).resolve() if target else page
            assert path.exists(), f"{target} of {name_of(page)}"
            if anchor and path.suffix == ".md":
                if path not in anchors:
                    anchors[path] = anchors_of(path)
                assert anchor[1:] in anchors[path], f"{target}{anchor} of {name_of(page)}"


def test_long_pages_begin_with_links_to_their_sections():
    """A section of a page that is longer than some screens is not found by scrolling."""
    guides = [page for page in (ROOT / "docs/guides").glob("*.md") if len(page.read_text().splitlines()) > 300]
    assert guides
    for page in guides:
        text = page.read_text(encoding="utf-8")
        linked = {anchor for _, anchor in LINK.findall(text.partition("\n## ")[0])}
        sections = re.findall(r"^## (.+)$", FENCE.sub("", text), re.MULTILINE)
        assert [name for name in sections if f"#{anchor_of(name)}" not in linked] == [], name_of(page)


def test_source_files_that_pages_name_exist():
    """Pages that are kept up to date name no module or test that was moved or removed."""
    folders = ("client", "metadata_quorum", "data_plane", "spark", "jepsen_like", "cli", "tests", "benchmarks")
    paths = "\n".join(f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.py"))
    missing = [
        f"{named} of {name_of(page)}"
        for page in PAGES
        if page.name not in DATED
        for named in re.findall(r"`([\w./-]*\w\.py)(?::\w+)?`", page.read_text())
        if f"/{named}\n" not in f"{paths}\n"
    ]
    assert missing == []


def test_extras_of_the_package_are_in_getting_started():
    """Extras for the work on Moldau itself, and those that only bring others together, are left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs/getting-started.md").read_text()
    listed = {
        name for row in re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)
    }
    assert listed == set(project["optional-dependencies"]) - {"bench", "chaos", "docs", "lint", "test"}


def test_every_page_of_the_site_is_in_its_navigation():
    listed = set(re.findall(r"(?::|-) ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in PAGES if (ROOT / "docs") in page.parents}
