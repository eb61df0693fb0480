"""Checks the credentials and roles of every gRPC and HTTP call. Holds the limits of clients and the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from google.protobuf.message import DecodeError, Message

from edged.api.auth import policy, tls
from edged.api.auth.audit import AuditLog, Line, about
from edged.api.auth.limits import Bounds, Budget, ClientLimits
from edged.api.auth.policy import Caller, ListenerPolicy
from edged.api.auth.tls import Certificate, PeerCertificate
from edged.api.auth.tokens import TokenBook, TokenFile
from edged.api.grpc.status import status_of
from edged.config.schema import Access, Tls
from edged.engines.alarms import Alarm, AlarmKind
from edged.errors import ConfigError, EdgedError, Forbidden, Unauthenticated
from edged.formatting import many

_LOG = logging.getLogger("edged.access")
_LOOK_SECONDS = 0.25  # so that a new token is valid within a second
_NO_TLS = Tls()


class Guard:
    """Checks who may call one daemon. Tokens, certificates and configuration may change while calls run."""

    def __init__(self, access: Access, tls: Tls, state: Path, defaults: tuple[str, str] | None = None) -> None:
        """`state` is the daemon's state folder. `defaults` are the addresses of the two default sockets, for inference
        and for operators; None if the daemon does not serve both.

        Raises ConfigError if the files of tokens or certificates are unusable.
        """
        self.access, self.tls, self._state, self._defaults = access, tls, state, defaults
        self.certificate = Certificate(tls) if tls.certificate else None
        self.limits = ClientLimits(Bounds.of(access))
        self.budget = Budget()
        self.audit = AuditLog(state / "audit", access.audit_mb << 20)
        self.refused: Counter[str] = Counter()  # by the name of a gRPC status
        self.generation = 0  # increases when the roles of callers may have changed
        self._book = TokenBook(TokenFile(tokens_path(access, state)))
        self._requests: dict[str, type[Message]] = {}
        self._open: dict[tuple[Caller, str], set[asyncio.Task[object]]] = {}  # running calls; see `_under_way`
        self._granted: dict[str, policy.Roles] = {}  # results of `_roles_of`, until the roles change
        self._without_tls = set[str]()  # addresses without TLS, even if [tls] is set

    def register(self, requests: Mapping[str, type[Message]]) -> None:
        """Add the request type of each method, by the method's path. `record` decodes requests with these types."""
        self._requests.update(requests)

    def require_known(self, addresses: Iterable[str], without_roles: Iterable[str] = ()) -> None:
        """Raise ConfigError if the access rules name an address that is not in `addresses`; see
        `policy.require_known`."""
        policy.require_known(self.access, self.tls, addresses, without_roles)

    def listener(self, address: str, *, has_tls: bool = True) -> ListenerPolicy:
        """Return the policy of an address; with `has_tls` False the address has no TLS. Raises ConfigError if the
        address is not allowed."""
        if not has_tls:
            self._without_tls.add(address)
        return policy.listener_policy(address, self.access, self.tls if has_tls else _NO_TLS, self._defaults)

    async def reconfigure(
        self, access: Access, listen: Iterable[str], others: Iterable[str] = (), without_roles: Iterable[str] = ()
    ) -> None:
        """Apply new roles, limits and tokens. `listen` are the addresses of gRPC, `others` the addresses of other
        endpoints, `without_roles` the addresses of endpoints whose callers need no role. On ConfigError nothing
        changes."""
        addresses = list(listen)
        gone = set(self.access.unencrypted) - set(access.unencrypted)
        if still := gone & {*addresses, *others, *without_roles}:
            raise ConfigError(
                f"access.unencrypted no longer names {min(still)}, but the running daemon still serves this address"
                " without TLS; restart the daemon"
            )
        policy.require_known(access, self.tls, [*addresses, *others], without_roles)
        for address in addresses:
            policy.listener_policy(address, access, self.tls, self._defaults)
        self._book = await asyncio.to_thread(TokenBook, TokenFile(tokens_path(access, self._state)))
        self.access = access
        self.limits.bounds = Bounds.of(access)
        self.audit.size = access.audit_mb << 20
        self._changed()

    def split(self, defaults: tuple[str, str] | None) -> None:
        """Set the addresses of the two default sockets; None if the daemon does not serve both."""
        if defaults != self._defaults:
            self._defaults = defaults
            self._changed()

    async def reconfigure_tls(self, tls: Tls) -> None:
        """Use other TLS files. Raises ConfigError if the files are unusable, or if the change needs a restart."""
        if self.certificate is None or _at_opening(tls) != _at_opening(self.tls):
            raise ConfigError(
                "the new [tls] changes which addresses use TLS or ask for certificates; restart the daemon to apply it"
            )
        await asyncio.to_thread(self.certificate.reconfigure, tls)
        self.tls = tls

    async def run(self) -> None:
        """Apply changes of tokens and certificates on disk, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            book, certificate = self._book, self.certificate
            changed = await asyncio.to_thread(book.look)
            renewed = certificate is not None and await asyncio.to_thread(certificate.look)
            self._see(changed and book is self._book, renewed)

    def look(self) -> None:
        """Apply changes of tokens and certificates on disk now."""
        self._see(self._book.look(), self.certificate is not None and self.certificate.look())

    def _see(self, changed: bool, renewed: bool) -> None:
        """Apply changes of the tokens (`changed`) and of the certificate (`renewed`). Cancel calls whose callers lost a
        role or their credentials."""
        if changed:
            _LOG.info("tokens changed: the file now has %d", len(self._book.tokens))
            self._changed()
        elif self._open:
            self._expel()  # end calls whose callers' credentials have expired
        if renewed:
            _LOG.info("the TLS files changed: certificate %s was read again and is in use", self.tls.certificate)

    def alarms(self) -> Iterator[Alarm]:
        """Yield an alarm for each problem of the certificate, the tokens and the audit log."""
        if self.certificate is not None and self.certificate.problem:
            yield Alarm(AlarmKind.CERTIFICATE, self.certificate.problem)
        if self._book.problem:
            yield Alarm(AlarmKind.TOKENS, f"{self._book.problem}; the previous tokens stay valid")
        if self.audit.problem:
            what = f"{many(self.audit.lost, 'audit record')} lost: {self.audit.problem}"
            yield Alarm(AlarmKind.AUDIT, what)

    def caller(
        self,
        listener: ListenerPolicy,
        authorization: str | None,
        peer: str = "",
        certificate: PeerCertificate | None = None,
    ) -> Caller:
        """Return the caller, from the header `authorization` and the client certificate of the connection."""
        who, now = policy.anonymous(listener, peer), time.time()
        if certificate:
            names = tls.names_of(certificate)
            who = policy.with_certificate(who, names, self.access.certificates, tls.ends_of(certificate), now)
        if authorization is not None:
            secret = policy.secret_of(authorization)
            if secret is None:
                return policy.malformed_token(who)
            return policy.with_token(who, self._book.find(secret), now)
        return who

    def require_allowed(self, method: str, who: Caller, peer: str) -> None:
        """Raise Unauthenticated or Forbidden if a caller may not call a method; the refusal is counted and recorded."""
        error = policy.refusal(method, who)
        if error is not None:
            self.refuse(method, who, peer, error)
            raise error

    def refuse(self, method: str, who: Caller, peer: str, error: EdgedError) -> None:
        """Count a refusal, and record it in the audit log."""
        code = status_of(error).name
        self.refused[code] += 1
        line = Line.of(who.name, who.roles, method, peer, code, str(error))
        self.audit.refused(line, policy.host_of(peer) or who.key)

    def record(
        self, method: str, who: Caller, peer: str, what: object, outcome: str, message: str, began: float
    ) -> None:
        """Record a call in the audit log. `what` is the request as a message or as bytes, or the recorded fields of the
        request. `began` is the call's start, in seconds of `time.perf_counter()`."""
        names = what if isinstance(what, dict) else self._about(method, what)
        took = round((time.perf_counter() - began) * 1e3, 1)
        self.audit.write(Line.of(who.name, who.roles, method, peer, outcome, message, about=names, milliseconds=took))

    def watched(self, who: Caller, method: str, *, is_stream: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a call of `method` runs. The context cancels streams, and calls with a token or a
        certificate, as soon as the caller may no longer make them. The context never cancels Reload: a reload can
        revoke the role of its own caller, and must still be answered."""
        if is_stream:
            return self._under_way(who, method)
        is_watched = who.has_shown and method != policy.RELOAD
        return self._under_way(who) if is_watched else contextlib.nullcontext()

    @contextlib.contextmanager
    def _under_way(self, who: Caller, stream: str = "") -> Iterator[None]:
        """While the `with` block runs, cancel the call as soon as its caller may no longer make the call. The block
        then raises the error that `lost` returns. `stream` is the method of a streaming call; empty for other calls."""
        task = asyncio.current_task()
        if task is None:
            yield
            return
        running = self._open.setdefault((who, stream), set())
        running.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if (lost := self.lost(who, stream)) is not None:
                raise lost from None
            raise
        finally:
            running.discard(task)
            if not running:
                self._open.pop((who, stream), None)

    def lost(self, who: Caller, stream: str = "") -> EdgedError | None:
        """Return why a caller's running calls must end; None if the calls may continue. There are three reasons. The
        caller's token is no longer valid. The caller's token or certificate has lost a role. The caller has no role for
        the method `stream`. If `stream` is empty, the third reason does not apply."""
        granted = policy.NONE  # by the token
        if who.key.startswith("token "):
            # By its digest: another token may have the same name by now.
            token = next((token for token in self._book.tokens if token.sha256 in who.proof), None)
            if token is None or (token.expires and time.time() >= token.expires):
                return Unauthenticated(f"the {who.name} is no longer valid; create another: edged tokens new")
            granted = frozenset(token.roles)
        if who.given - granted - policy.roles_of(who.proof, self.access.certificates):
            return Forbidden(
                f"the {who.name} has lost a role during the call; see access.certificates, and: edged tokens list"
            )
        needed = policy.METHODS.get(stream, policy.DENY_ALL) if stream else None
        if needed is not None and not needed & (who.given | self._roles_of(who.address)):
            name = stream.rpartition("/")[2]
            return Forbidden(
                f"{who.name} has lost the role {policy.least_role(stream)}, which {name} needs; see [access]"
            )
        return None

    def _roles_of(self, address: str) -> policy.Roles:
        """Return the roles that an address now grants to all of its clients."""
        roles = self._granted.get(address)
        if roles is None:
            try:
                roles = self.listener(address, has_tls=address not in self._without_tls).roles
            except ConfigError:
                roles = policy.NONE
            self._granted[address] = roles
        return roles

    def _expel(self) -> None:
        for (who, stream), tasks in list(self._open.items()):
            if self.lost(who, stream) is not None:
                for task in list(tasks):
                    task.cancel()

    def _changed(self) -> None:
        self.generation += 1
        self._granted.clear()
        self._expel()

    def _about(self, method: str, what: object) -> dict[str, str]:
        if isinstance(what, Message):
            return about(what)
        kind = self._requests.get(method)
        if kind is None or not isinstance(what, bytes | memoryview):
            return {}
        try:
            return about(kind.FromString(bytes(what)))
        except DecodeError:
            return {}


def _at_opening(tls: Tls) -> tuple[object, ...]:
    """Return the settings of TLS that are fixed when a listener opens."""
    return bool(tls.certificate), bool(tls.client_ca), tls.without_client_certificate, tls.on_loopback


def tokens_path(access: Access, state: Path) -> Path:
    """Return the path of the tokens file."""
    return Path(access.tokens_file).absolute() if access.tokens_file else state / "access" / "tokens.json"
