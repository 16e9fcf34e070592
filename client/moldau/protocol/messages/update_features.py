"""UpdateFeatures: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class FeatureUpdateKey(Struct):
    """An element of ``feature_updates`` in ``UpdateFeaturesRequest``."""

    feature: str = field.string("0+")
    max_version_level: int = field.int16("0+")
    allow_downgrade: bool = field.boolean("0")
    upgrade_type: int = field.int8("1+", default=1)


class UpdateFeaturesRequest(Request, api_key=57, versions="0-2", flexible="0+"):
    """Raise or lower finalized feature levels (KIP-584)."""

    timeout_ms: int = field.int32("0+", default=60000)
    feature_updates: Sequence[FeatureUpdateKey] = field.array(FeatureUpdateKey, "0+")
    validate_only: bool = field.boolean("1+")


class UpdatableFeatureResult(Struct):
    """An element of ``results`` in ``UpdateFeaturesResponse``."""

    feature: str = field.string("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")


class UpdateFeaturesResponse(Response, api_key=57, versions="0-2", flexible="0+"):
    """One outcome for each feature."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    results: Sequence[UpdatableFeatureResult] = field.array(UpdatableFeatureResult, "0-1")
