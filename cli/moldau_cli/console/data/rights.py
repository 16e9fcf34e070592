"""Access control lists and quotas of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.admin.calls.quotas import QuotaName
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.net.served_versions import UnsupportedApiError
from moldau_cli.console.data.asking import ROWS_MAX

if TYPE_CHECKING:
    from moldau import Admin
    from moldau.admin.calls.quotas import QuotaEntity
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


async def quotas(admin: Admin, wanted: str = "") -> dict[str, Json]:
    """Returns the quotas (KIP-546) of entities whose text contains ``wanted``.

    Raises:
        KafkaError: the quotas may not be described.
    """
    try:
        found = await admin.describe_client_quotas()
    except UnsupportedApiError:
        return {"rows": [], "total": 0, "notes": ["The brokers do not serve DescribeClientQuotas."]}
    kept: list[dict[str, Json]] = []
    for each in found:
        entity = _shown(each.entity)
        if wanted in entity:
            kept += [{"entity": entity, "key": key, "value": value} for key, value in each.quotas.items()]
    kept.sort(key=lambda row: (str(row["entity"]), str(row["key"])))
    return {"rows": list(kept[:ROWS_MAX]), "total": len(kept), "notes": []}


def _shown(entity: QuotaEntity) -> str:
    parts = (("user", entity.user), ("client-id", entity.client_id), ("ip", entity.ip))
    named = ((kind, "(default)" if name is QuotaName.DEFAULT else name) for kind, name in parts if name is not None)
    return ", ".join(f"{kind} {name}" for kind, name in named)
