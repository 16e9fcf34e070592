"""Names the line of code that an exception came from, for findings and reports."""

from __future__ import annotations

from pathlib import Path

from moldau.runtime.tasks.exceptions import leaves


def place_of(error: BaseException | None) -> str:
    """Returns the place an exception came from."""
    if error is None:
        return ""
    error = next(leaves(error))
    trace = error.__traceback__
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{Path(code.co_filename).name}:{trace.tb_lineno} {code.co_qualname}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error} at {place}"
