"""Goal: what pages tell a reader to run works, and their links lead somewhere.

Method: the blocks marked ``sh`` of a page run in one shell, in a directory of their own, as a reader would type them;
those marked ``python`` run one after the other against a cluster. Relative links and anchors are looked up.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moldau_jepsen.testing import cluster

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


def blocks(page, language):
    return [text for name, text in FENCE.findall(page.read_text()) if name == language]


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.mark.processes
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")], ids=name_of)
def test_commands_of_a_page_run(page, tmp_path):
    script = "set -euo pipefail\n" + "\n".join(blocks(page, "sh"))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
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
        stop = ["moldau", "cluster", "stop"] if (tmp_path / "moldau-cluster").is_dir() else ["true"]
        subprocess.run(stop, cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.processes
def test_code_of_the_application_guide_runs(capsys):
    page = ROOT / "docs" / "guides" / "application.md"
    with cluster(brokers=1) as local:
        for code in blocks(page, "python"):
            exec(compile(code, str(page), "exec"), {"BOOTSTRAP": local.bootstrap})
    assert "payments 0 0 b'25 EUR'" in re.sub(r"payments \d+ ", "payments 0 ", capsys.readouterr().out)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(page):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for target, anchor in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{target} of {name_of(page)}"
        if anchor and path.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
            assert anchor[1:] in slugs, f"{target}{anchor} of {name_of(page)}"


def test_every_page_of_the_site_is_in_its_navigation():
    listed = set(re.findall(r"(?::|-) ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in PAGES if (ROOT / "docs") in page.parents}
