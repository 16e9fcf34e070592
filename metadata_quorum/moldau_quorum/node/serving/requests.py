"""The APIs of a controller listener: Kafka's APIs for brokers and administrators, and the two private ones.

One ``ControllerConnection`` per connection. Changes go to the active controller's queue, reads wait for a read
barrier, and everything that only the active controller can answer is refused with NOT_CONTROLLER elsewhere. Envelopes
(KIP-590) are unpacked: brokers forward what clients ask of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.access import AclOperation
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import RequestHeader, decode_request_header, encode_response
from moldau.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    is_malformed,
    supported_feature_keys,
)
from moldau.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.messages.update_features import UpdateFeaturesRequest
from moldau.protocol.refusals import refusal
from moldau.runtime.net.serving.answer_limit import encode_answer_in_turns
from moldau.runtime.net.serving.answers import CloseConnection, ResponsePart
from moldau.runtime.net.serving.entry_limit import decode_limited
from moldau.runtime.sasl.core.server import illegal_sasl_state
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.telemetry.log_levels import PROCESS_LOG_LEVELS
from moldau_quorum.authorization.checks import SECURITY_APIS, Verdict, check, disabled
from moldau_quorum.authorization.principals import forwarded_identity
from moldau_quorum.broker_side.metadata_fetch import METADATA_FETCH_KEY, decode_fetch_request, encode_fetch_response
from moldau_quorum.controller.cluster.features import SUPPORTED_FEATURES
from moldau_quorum.controller.context import DecisionView
from moldau_quorum.controller.dispatch import CHANGES, READS, DecisionInputs
from moldau_quorum.controller.entities.loggers import NodeLoggers
from moldau_quorum.log.port import (
    QUORUM_MESSAGE_KEY,
    NotLeaderError,
    OutcomeUnknownError,
    QuorumMessageRefusedError,
)
from moldau_quorum.metadata.records import MetadataCorruptError
from moldau_quorum.node.request_queue import NotActiveError, PendingAnswer
from moldau_quorum.node.serving.apis import ANSWERS, CONTROLLER_CHECKS, SERVED_APIS
from moldau_quorum.node.serving.loggers import begin_with_loggers
from moldau_quorum.node.voters.leadership_transfer import (
    LEADERSHIP_TRANSFER_KEY,
    decode_transfer_request,
    encode_transfer_response,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.sasl.core.identity import Identity, Peer
    from moldau_quorum.authorization.authorizer import Authorizer, Permissions
    from moldau_quorum.controller.context import Result
    from moldau_quorum.log.port import MetadataLog, QuorumSession
    from moldau_quorum.node.active_controller import ActiveController
    from moldau_quorum.node.serving.metadata_service import MetadataService
    from moldau_quorum.node.serving.quotas import ControllerQuotas
    from moldau_quorum.node.state_machine import MetadataStateMachine
    from moldau_quorum.node.voters.quorum_admin import QuorumAdmin
    from moldau_quorum.quotas.mutations import MutationAllowance

READ_TIMEOUT_MS: Final = 10_000.0

_PRIVATE_KEYS: Final = (QUORUM_MESSAGE_KEY, METADATA_FETCH_KEY, LEADERSHIP_TRANSFER_KEY)
NOT_FORWARDED: Final = (ApiKey.ENVELOPE, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
"""APIs that concern a connection itself."""


TOKEN_APIS: Final = (ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN)
"""APIs whose decision depends on the sender."""


class _Answer:
    """A ``Deferred`` around a coroutine function."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Awaitable[bytes]]) -> None:
        self._make = make

    async def wait(self) -> Sequence[ResponsePart]:
        return (await self._make(),)


class ControllerService:
    """The state that all connections of a controller share."""

    def __init__(
        self,
        *,
        active: ActiveController,
        log: MetadataLog,
        machine: MetadataStateMachine,
        metadata: MetadataService,
        quorum: QuorumAdmin,
        make_inputs: Callable[[], DecisionInputs],
        node_id: int,
        features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
        authorizer: Authorizer | None = None,
        quotas: ControllerQuotas,
        entries_max: int = 10_000,
    ) -> None:
        """Collects the parts that answer requests.

        ``make_inputs`` gives the committed image with a fresh context, for reads; ``features`` are the levels that
        this node supports. Without ``authorizer`` everyone may do everything. ``entries_max`` is
        ``request.max.entries``.
        """
        self.authorizer = authorizer
        self.quotas = quotas
        self.entries_max = entries_max
        self._features = features
        self.active = active
        self.log = log
        self.machine = machine
        self.metadata = metadata
        self.quorum = quorum
        self.make_inputs = make_inputs
        self.logger = EventLogger("moldau.controller-server", node=node_id)
        self._loggers = NodeLoggers("controller", node_id, PROCESS_LOG_LEVELS)

    def partition_count(self) -> int:
        """Counts the partitions of the committed image."""
        return sum(len(topic.partitions) for topic in self.machine.image.topics_by_name.values())

    def api_versions(self, version: int) -> ApiVersionsResponse:
        """Answers a request of a version of ApiVersions with the served APIs and the features."""
        image = self.machine.image
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=APIS[key].versions.first, max_version=APIS[key].versions.last)
                for key in SERVED_APIS
            ],
            supported_features=supported_feature_keys(self._features, version),
            finalized_features_epoch=image.offset,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in sorted(image.features.items())
            ],
        )

    def begin(
        self,
        request: Request,
        connection: object,
        mutations: MutationAllowance | None = None,
        requester: Identity | None = None,
        *,
        is_forwarded: bool = False,
    ) -> Callable[[], Awaitable[Response]]:
        """Takes any request but ApiVersions and Envelope; the function returned waits for the response.

        ``is_forwarded`` says that the request came in an envelope.

        Changes are in the active controller's queue when this returns, so that pipelined requests keep their order; but
        for changes of feature levels, which wait for what the other voters support.

        Raises:
            NotActiveError: only the active controller can answer; the function may raise it too.
        """
        key = request.__api_key__
        if not is_forwarded:
            with_loggers = begin_with_loggers(
                request, self._loggers, lambda rest: self.begin(rest, connection, mutations, requester)
            )
            if with_loggers is not None:
                return with_loggers
        if isinstance(request, UpdateFeaturesRequest):
            if not self.active.is_active:
                raise NotActiveError
            return lambda: self.active.update_features(request, connection)
        if key in CHANGES:
            pending = self.active.submit(
                request, connection, mutations=mutations, requester=requester, is_forwarded=is_forwarded
            )
            return lambda: self._answer_throttled(pending)
        if key in READS:
            return lambda: self._read(request)
        return ANSWERS[request.__api_key__](self.quorum, request)

    async def _answer_throttled(self, pending: PendingAnswer) -> Response:
        """Waits for the decision; the response of a sender above its quota says for how long it must pause."""
        response = await self.active.answer(pending)
        if pending.mutations is not None:
            throttle_ms = self.quotas.throttle_ms(pending.mutations)
            if throttle_ms:
                response.throttle_time_ms = throttle_ms  # type: ignore[attr-defined]
        return response

    async def _read(self, request: Request) -> Response:
        with trio.move_on_after(READ_TIMEOUT_MS / 1000) as scope:
            try:
                await self.log.read_barrier()
            except (NotLeaderError, OutcomeUnknownError) as error:
                raise NotActiveError from error  # a read has no outcome to be unknown: it is asked again elsewhere
        if scope.cancelled_caught:
            return refusal(request, ErrorCode.REQUEST_TIMED_OUT, "the metadata quorum did not confirm its leader")
        inputs = self.make_inputs()
        result: Result[Response] = READS[request.__api_key__](request, inputs)
        for _ in result.slices(DecisionView(inputs.image, inputs.context)):
            await trio.lowlevel.checkpoint()
        return result.response


class ControllerConnection:
    """Serves one connection (a ``ConnectionHandler``)."""

    def __init__(
        self, service: ControllerService, peer: Peer, refusal_of_host: Callable[[str], str | None] | None = None
    ) -> None:
        """``refusal_of_host`` says why the peer cannot be the controller at a host, None if it can."""
        self._service = service
        self._peer = peer
        self._permissions: Permissions | None = None
        self._refusal_of_host = refusal_of_host
        self._session: QuorumSession | None = None

    def handle(self, frame: memoryview) -> list[ResponsePart] | _Answer | None:
        """Takes one request."""
        try:
            header = decode_request_header(frame)
            if header.api_key in _PRIVATE_KEYS:
                self._check_node(header.api_key)
            if header.api_key == QUORUM_MESSAGE_KEY:
                self._take_quorum_message(frame[header.body_offset :])
                return None
            if header.api_key == METADATA_FETCH_KEY:
                return self._fetch_metadata(header, frame)
            if header.api_key == LEADERSHIP_TRANSFER_KEY:
                return self._transfer_leadership(header, frame)
            return self._handle_api(header, frame)
        except (ProtocolError, MetadataCorruptError) as error:
            raise CloseConnection(f"malformed request: {error}") from error

    def flush(self) -> None:
        """Does nothing, because the log gathers its writes itself."""

    def closed(self) -> None:
        """Ends the brokers' session and the quorum session of a connection that has ended."""
        self._service.active.connection_closed(self)
        if self._session is not None:
            self._session.close()

    def _rights(self) -> Permissions | None:
        """Returns what the peer may do now; None if there is no authorizer."""
        authorizer = self._service.authorizer
        if authorizer is None:
            return None
        if self._permissions is None or self._permissions.identity is not self._peer.identity:
            self._permissions = authorizer.permissions(self._peer.identity)
        self._permissions.refresh()
        return self._permissions

    def _check_node(self, key: int) -> None:
        """Checks that the peer of a private message may speak as a node.

        Raises:
            CloseConnection: it may not.
        """
        rights = self._rights()
        if rights is not None:
            rights.api = None
            if not rights.may_cluster(AclOperation.CLUSTER_ACTION):
                raise CloseConnection(
                    f"{self._peer.identity.principal} may not speak as a node (private API {key})", is_logged=True
                )

    def _take_quorum_message(self, body: memoryview) -> None:
        if self._session is None:
            self._session = self._service.log.accept_session(self._refusal_of_host)
        try:
            self._session.handle(body)
        except QuorumMessageRefusedError as error:
            raise CloseConnection(str(error), is_logged=True) from error

    def _fetch_metadata(self, header: RequestHeader, frame: memoryview) -> _Answer:
        request = decode_fetch_request(frame[header.body_offset :])

        async def answer() -> bytes:
            return _private_frame(header, encode_fetch_response(await self._service.metadata.fetch(request)))

        return _Answer(answer)

    def _transfer_leadership(self, header: RequestHeader, frame: memoryview) -> _Answer:
        target_id = decode_transfer_request(frame[header.body_offset :])

        async def answer() -> bytes:
            return _private_frame(header, encode_transfer_response(await self._service.quorum.transfer(target_id)))

        return _Answer(answer)

    def _handle_api(self, header: RequestHeader, frame: memoryview) -> list[ResponsePart] | _Answer:
        key, version = header.api_key, header.api_version
        if key not in SERVED_APIS:
            raise CloseConnection(f"API {key} is not served on a controller listener")
        if version not in APIS[key].versions:
            if key == ApiKey.API_VERSIONS:
                response = self._service.api_versions(0)
                response.error_code = ErrorCode.UNSUPPORTED_VERSION
                return [encode_response(response, 0, header.correlation_id)]
            raise CloseConnection(f"version {version} of API {key} is not served, only {APIS[key].versions}")
        # The decision comes later than this call, so it must not look at the borrowed frame.
        request = self._decode(header, bytes(frame))
        if isinstance(request, bytes):
            return [request]
        if isinstance(request, ApiVersionsRequest):
            versions = self._service.api_versions(version)
            if is_malformed(request, version):
                versions = ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            return [encode_response(versions, version, header.correlation_id)]
        illegal = illegal_sasl_state(request)
        if illegal is not None:
            return [encode_response(illegal, version, header.correlation_id)]
        verdict = _judge(request, version, self._rights())
        if verdict.remainder is None:
            assert verdict.refused is not None
            return [encode_response(verdict.refused, version, header.correlation_id)]
        request = verdict.remainder
        if isinstance(request, EnvelopeRequest):
            return self._handle_envelope(request, version, header.correlation_id)

        allowance = self._service.quotas.allowance(request, self._peer.identity, header)
        try:
            wait = self._service.begin(request, self, allowance, self._peer.identity)
        except NotActiveError:
            return [encode_response(_not_controller(request, version), version, header.correlation_id)]

        async def answer() -> bytes:
            try:
                response = await wait()
            except NotActiveError:
                response = _not_controller(request, version)
            response = verdict.answer(response, version)
            return await self._encode(response, version, header.correlation_id, request)

        return _Answer(answer)

    def _decode(self, header: RequestHeader, frame: bytes) -> Request | bytes:
        """Returns the request of a frame, or the frame of its refusal if it has too many entries."""
        service = self._service
        return decode_limited(
            header.api_key,
            header.api_version,
            frame,
            header.body_offset,
            entries_max=service.entries_max,
            partition_count=service.partition_count,
            correlation_id=header.correlation_id,
            logger=service.logger,
        )

    async def _encode(self, response: Response, version: int, correlation_id: int, request: Request) -> bytes:
        return await encode_answer_in_turns(
            response, version, correlation_id, request=lambda: request, logger=self._service.logger
        )

    def _handle_envelope(
        self, envelope: EnvelopeRequest, version: int, correlation_id: int
    ) -> list[ResponsePart] | _Answer:
        def refused(code: ErrorCode) -> bytes:
            return encode_response(refusal(envelope, code, version=version), version, correlation_id)

        frame = bytes(envelope.request_data)
        header = decode_request_header(frame)
        key, inner_version = header.api_key, header.api_version
        if key not in SERVED_APIS or key in NOT_FORWARDED:
            raise CloseConnection(f"API {key} cannot be forwarded in an envelope")
        if inner_version not in APIS[key].versions:
            return [refused(ErrorCode.UNSUPPORTED_VERSION)]
        request = self._decode(header, frame)
        if isinstance(request, bytes):
            return [encode_response(EnvelopeResponse(response_data=request), version, correlation_id)]
        asker = self._asker(envelope)
        verdict = _judge(request, inner_version, self._rights_of(asker))
        if verdict.remainder is None:
            assert verdict.refused is not None
            data = encode_response(verdict.refused, inner_version, header.correlation_id)
            return [encode_response(EnvelopeResponse(response_data=data), version, correlation_id)]
        try:
            allowance = None  # what brokers ask for themselves is not limited
            if asker is not None:
                allowance = self._service.quotas.allowance(verdict.remainder, asker, header)
            requester = (asker or self._peer.identity) if key in TOKEN_APIS else None
            wait = self._service.begin(verdict.remainder, self, allowance, requester, is_forwarded=True)
        except NotActiveError:
            return [refused(ErrorCode.NOT_CONTROLLER)]

        async def answer() -> bytes:
            try:
                inner = await wait()
            except NotActiveError:
                return refused(ErrorCode.NOT_CONTROLLER)
            inner = verdict.answer(inner, inner_version)
            data = await self._encode(inner, inner_version, header.correlation_id, request)
            return encode_response(EnvelopeResponse(response_data=data), version, correlation_id)

        return _Answer(answer)

    def _asker(self, envelope: EnvelopeRequest) -> Identity | None:
        """Returns the client behind a forwarded request; a broker's own requests name no client."""
        if envelope.request_principal is None:
            return None
        return forwarded_identity(envelope.request_principal, envelope.client_host_address, self._peer.identity)

    def _rights_of(self, asker: Identity | None) -> Permissions | None:
        authorizer = self._service.authorizer
        if authorizer is None or asker is None:
            return self._rights()
        return authorizer.permissions(asker)


def _judge(request: Request, version: int, rights: Permissions | None) -> Verdict:
    if rights is not None:
        return check(request, version, rights, CONTROLLER_CHECKS)
    if request.__api_key__ in SECURITY_APIS:
        return disabled(request, version)
    return Verdict(request)


def _private_frame(header: RequestHeader, body: bytes) -> bytes:
    """Returns the frame of a response of a private API: size, correlation id, body."""
    return (len(body) + 4).to_bytes(4, "big") + header.correlation_id.to_bytes(4, "big", signed=True) + body


def _not_controller(request: Request, version: int) -> Response:
    message = "this node is not the active controller, or ceased to be it meanwhile"
    return refusal(request, ErrorCode.NOT_CONTROLLER, message, version=version)
