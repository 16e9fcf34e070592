"""Runs the fast tests on every other Python that is found, and compares the traces of seeds.

    python tests/support/other_pythons.py [--pythons 3.12,3.13] [-- PYTEST ARGUMENTS]

An interpreter is looked for on the PATH and below ``~/.pyenv/versions``. Each found one gets an environment in
``.venv-other/`` with the package and its extension modules built for it. One that is not found is skipped, with the
reason on a line of its own. The exit code is 1 where anything failed on any interpreter, and 0 otherwise; it is 0 too
where none was found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venv-other"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
FAST = [
    "-m",
    "not processes and not interop and not spark",
    "-q",
    "tests/moldau",
    "tests/moldau_quorum",
    "tests/moldau_broker",
]
ARROW = "pyarrow>=18"  # of the extra spark, whose pyspark the fast tests do not need
SEEDS = (1, 2)
INSTALL_TIMEOUT_S, SEED_TIMEOUT_S, TESTS_TIMEOUT_S = 1_800, 900, 7_200


def find(version: str) -> tuple[Path | None, str]:
    """Returns an interpreter of this version that runs, or None and why there is none."""
    reasons = []
    name = f"python{version}"
    found = shutil.which(name)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [*([Path(found)] if found else []), *sorted(pyenv.glob(f"{version}.*/bin/{name}"), reverse=True)]
    for place in places:
        asked = subprocess.run(
            [place, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return place, ""
        reasons.append(f"{place} does not run: {' '.join(asked.stderr.split())[:120]}")
    return None, "; ".join(reasons) or f"no {name} on the PATH, nor below {pyenv}"


def prepare(version: str, interpreter: Path) -> Path:
    """Makes the environment of an interpreter, or brings it up to date; returns its Python."""
    directory = ENVIRONMENTS / version
    python = directory / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", directory], check=True, timeout=INSTALL_TIMEOUT_S)
    pip: list[str | Path] = [python, "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "-e", ".[test]", ARROW], cwd=ROOT, check=True, timeout=INSTALL_TIMEOUT_S)
    return python


def traces(python: Path) -> dict[int, str]:
    """The trace hash of each seed, as this Python simulates it."""
    found = {}
    for seed in SEEDS:
        run = subprocess.run(
            [python, "-m", "moldau_cli", "sim", "run", "--seed", str(seed), "--json"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SEED_TIMEOUT_S,
            check=False,
        )
        found[seed] = json.loads(run.stdout)["trace_hash"] if run.returncode == 0 else f"failed: {run.stderr[-300:]}"
    return found


def check(version: str, python: Path, expected: dict[int, str], arguments: list[str]) -> list[str]:
    """Runs seeds and tests; returns what went wrong."""
    problems = [
        f"seed {seed}: trace {trace}, but {expected[seed]} on Python {sys.version_info.major}.{sys.version_info.minor}"
        for seed, trace in traces(python).items()
        if trace != expected[seed]
    ]
    tests = subprocess.run([python, "-m", "pytest", *arguments], cwd=ROOT, timeout=TESTS_TIMEOUT_S, check=False)
    if tests.returncode:
        problems.append(f"pytest ended with exit code {tests.returncode}")
    return problems


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", default=",".join(PYTHONS), help="versions, separated by commas")
    parser.add_argument("arguments", nargs="*", help="arguments of pytest instead of the fast tests, behind --")
    given = parser.parse_args()
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    expected = traces(Path(sys.executable))
    results = {}
    for version in given.pythons.split(","):
        if version == own:
            continue
        interpreter, reason = find(version)
        if interpreter is None:
            print(f"Python {version}: skipped, {reason}", flush=True)
            continue
        print(f"Python {version}: {interpreter}", flush=True)
        try:
            results[version] = check(version, prepare(version, interpreter), expected, given.arguments or FAST)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            results[version] = [str(error)]
    for version, problems in results.items():
        print(f"Python {version}: {'; '.join(problems) or 'all as on Python ' + own}")
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
