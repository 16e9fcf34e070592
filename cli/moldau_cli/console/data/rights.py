"""Access control lists and quotas of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.console.data.asking import ROWS_MAX

if TYPE_CHECKING:
    from moldau import Admin
    from moldau_cli.output import Json

NO_AUTHORIZER = "The cluster has no authorizer: every client may do everything. Set authorizer.class.name on all nodes."


async def acls(admin: Admin, wanted: str = "") -> dict[str, Json]:
    """Returns the entries whose principal or resource name contains ``wanted``."""
    try:
        found = await admin.describe_acls()
    except KafkaError as error:
        if error.code is not ErrorCode.SECURITY_DISABLED:
            raise
        return {"rows": [], "total": 0, "notes": [NO_AUTHORIZER]}
    kept = [each for each in found if wanted in each.principal or wanted in each.name]
    rows: list[Json] = [
        {
            "resource": each.resource,
            "name": each.name,
            "pattern": each.pattern,
            "principal": each.principal,
            "host": each.host,
            "operation": each.operation,
            "permission": each.permission,
        }
        for each in kept[:ROWS_MAX]
    ]
    return {"rows": rows, "total": len(kept), "notes": []}
