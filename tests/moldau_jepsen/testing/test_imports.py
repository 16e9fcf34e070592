"""Goal: a session imports Moldau fast, and a missing extra is named. Method: finders, and modules that are hidden."""

import sys

import pytest

from moldau_cli.main import REQUIREMENTS
from moldau_jepsen.testing import cluster, new_history, simulate
from moldau_jepsen.testing.imports import KIT_NEEDS, PlainImports, end_plain_imports, use_plain_imports


def test_only_moldaus_modules_are_found() -> None:
    assert PlainImports.find_spec("moldau") is not None
    assert PlainImports.find_spec("moldau_of_others") is None
    assert PlainImports.find_spec("json") is None


def test_the_finder_is_there_once_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if one is not PlainImports])
    before = list(sys.meta_path)
    use_plain_imports()
    use_plain_imports()
    assert sys.meta_path == [PlainImports, *before]
    end_plain_imports()
    end_plain_imports()
    assert sys.meta_path == before


def test_clusters_need_what_nodes_need() -> None:
    """The kit has a list of its own: it cannot import the command line, which imports nothing before it has looked."""
    assert REQUIREMENTS["server"] == KIT_NEEDS


@pytest.mark.parametrize("missing", KIT_NEEDS)
def test_a_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(_: object) -> None: ...

    monkeypatch.setattr(
        "moldau_jepsen.testing.imports.importlib.util.find_spec", lambda name: None if name == missing else object()
    )
    for use in (new_history, lambda: simulate(scenario, seed=1), lambda: cluster().__enter__()):
        with pytest.raises(ImportError, match=rf"need {missing}: pip install 'moldau\[kit\]'"):
            use()
