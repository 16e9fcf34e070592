"""Regular expressions that clients send, in RE2 syntax, as Kafka defines it (KIP-848, KIP-1152).

RE2 matches in linear time, so no client can stop the coordinator with an expression. The library is an optional extra
of the package; a broker without it refuses expressions with INVALID_REGULAR_EXPRESSION.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

EXPRESSION_CHARACTERS_MAX = 16_384
_MEMORY_BYTES_MAX = 1 << 20
"""Memory of a compiled expression; RE2 refuses larger ones."""


def compile_regex(expression: str) -> Callable[[str], bool]:
    """Returns a test whether the expression matches a whole name.

    Raises:
        KafkaError: INVALID_REGULAR_EXPRESSION.
    """
    if importlib.util.find_spec("re2") is None:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "This broker cannot match regular expressions: install moldau[regex] on all brokers.",
        )
    import re2

    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The regular expression has {len(expression)} characters; {EXPRESSION_CHARACTERS_MAX} are allowed.",
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        pattern = re2.compile(expression, options)
    except re2.error as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"`{expression}` is not a valid regular expression of RE2: {error}.",
        ) from error
    return lambda name: pattern.fullmatch(name) is not None
