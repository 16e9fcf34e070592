"""Asks brokers for the problems of tiered storage that only they know: no API of Kafka tells them.

Brokers answer at ``/problems`` of their ``metrics.listener``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from moldau_cli.health import REPORTED, Problem
from moldau_cli.operations.node_pages import read_pages

if TYPE_CHECKING:
    from collections.abc import Mapping


async def ask_for_problems(addresses: Mapping[int, str]) -> list[Problem]:
    """Returns the problems that brokers report, by their ids; brokers that do not answer report none.

    ``addresses`` are those of their ``metrics.listener``.
    """
    found = await read_pages(addresses, "/problems", parse_problems)
    return [
        Problem(kind=kind, subject=f"broker {node_id}", detail=detail)
        for node_id, problems in sorted(found.items())
        for kind, detail in problems
    ]


def parse_problems(page: bytes) -> list[tuple[str, str]]:
    """Returns kind and detail of each problem in an answer; kinds that only a newer version knows are left out.

    Raises:
        ValueError: it is no such answer.
    """
    rows = json.loads(page)
    try:
        return [(row["kind"], str(row["detail"])) for row in rows if row["kind"] in REPORTED]
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a list of problems: {page[:100]!r}") from error
