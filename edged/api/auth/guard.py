"""What stands before every call, whichever way it comes: who is it, may it, is it too much, and is it written down."""

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
from edged.api.auth.audit import AuditLog, Line, about, now_told
from edged.api.auth.limits import Bounds, Budget, ClientLimits
from edged.api.auth.policy import Caller, ListenerPolicy
from edged.api.auth.tls import Certificate
from edged.api.auth.tokens import TokenBook, TokenFile
from edged.api.grpc.grpc_limits import TrafficMonitor
from edged.api.grpc.status import status_of
from edged.config.access import Access, Tls
from edged.engines.alarms import Alarm, AlarmKind
from edged.errors import ConfigError, EdgedError, Forbidden, Unauthenticated

_LOG = logging.getLogger("edged.access")
_LOOK_SECONDS = 0.25  # a token that was just made is good within a second
_NO_TLS = Tls()


class Guard:
    """Of one daemon. Everything it knows may change while calls are under way: tokens, certificates, configuration."""

    def __init__(self, access: Access, tls: Tls, state: Path, defaults: tuple[str, str] | None = None) -> None:
        """`state` is the daemon's folder, `defaults` its two default sockets where both serve. ConfigError."""
        self.access, self.tls, self._state, self._defaults = access, tls, state, defaults
        self.certificate = Certificate(tls) if tls.certificate else None
        self.limits = ClientLimits(Bounds.of(access))
        self.budget = Budget()
        self.traffic = TrafficMonitor()
        self.audit = AuditLog(state / "audit", access.audit_mb << 20)
        self.turned_away: Counter[str] = Counter()  # by the name of a gRPC status
        self.generation = 0  # another number once callers may have other roles
        self._book = TokenBook(self._file(access))
        self._requests: dict[str, type[Message]] = {}
        self._open: dict[Caller, set[asyncio.Task[object]]] = {}  # what callers who showed something have under way

    def knows(self, requests: Mapping[str, type[Message]]) -> None:
        """What comes as bytes, by the path of its method."""
        self._requests.update(requests)

    def require_known(self, addresses: Iterable[str]) -> None:
        """ConfigError where the configuration speaks of an address that is not one of them."""
        policy.require_known(self.access, self.tls, addresses)

    def listener(self, address: str, *, has_tls: bool = True) -> ListenerPolicy:
        """What an address gives now; `has_tls`: where the configuration wants it. ConfigError for one that may not
        be."""
        return policy.listener_policy(address, self.access, self.tls if has_tls else _NO_TLS, self._defaults)

    async def heed(self, access: Access, listen: Iterable[str], beside: Iterable[str] = ()) -> None:
        """Another configuration of roles, limits and tokens, with the addresses of gRPC and others that there are to
        be. ConfigError where it cannot be used: then as before."""
        there = list(listen)
        policy.require_known(access, self.tls, [*there, *beside])
        for address in there:
            policy.listener_policy(address, access, self.tls, self._defaults)
        self._book = await asyncio.to_thread(TokenBook, self._file(access))
        self.access = access
        self.limits.bounds = Bounds.of(access)
        self.audit.size = access.audit_mb << 20
        self._changed()

    def split(self, defaults: tuple[str, str] | None) -> None:
        """The two default sockets serve from now on, or no longer both."""
        if defaults != self._defaults:
            self._defaults = defaults
            self._changed()

    async def heed_tls(self, tls: Tls) -> None:
        """Other files. ConfigError where they cannot be used, or where addresses would have to be opened anew."""
        if self.certificate is None or _begins(tls) != _begins(self.tls):
            raise ConfigError(
                "where there is TLS, and where it asks for certificates, is settled when the daemon starts"
            )
        await asyncio.to_thread(self.certificate.heed, tls)
        self.tls = tls

    async def run(self) -> None:
        """Sees tokens and certificates that were changed on disk; until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            book, certificate = self._book, self.certificate
            changed = await asyncio.to_thread(book.look)
            renewed = certificate is not None and await asyncio.to_thread(certificate.look)
            self._see(changed and book is self._book, renewed)

    def look(self) -> None:
        """As the daemon does every second."""
        self._see(self._book.look(), self.certificate is not None and self.certificate.look())

    def _see(self, changed: bool, renewed: bool) -> None:
        """Whoever lost a role loses what it has under way by it."""
        if changed:
            _LOG.info("there are %d tokens now", len(self._book.tokens))
            self._changed()
        elif self._open:
            self._expel()  # what has expired meanwhile
        if renewed:
            _LOG.info("the certificate %s is in force from now on", self.tls.certificate)

    def alarms(self) -> Iterator[Alarm]:
        """What is wrong with certificates, tokens and the records of what operators did."""
        if self.certificate is not None and self.certificate.problem:
            yield Alarm(AlarmKind.CERTIFICATE, self.certificate.problem)
        if self._book.problem:
            yield Alarm(AlarmKind.TOKENS, f"{self._book.problem}; the tokens from before are still good")
        if self.audit.problem:
            what = f"{self.audit.lost} records of what operators did are lost: {self.audit.problem}"
            yield Alarm(AlarmKind.AUDIT, what)

    # -- one call ---------------------------------------------------------------------------------------------------

    def caller(
        self,
        listener: ListenerPolicy,
        authorization: str | None,
        peer: str = "",
        context: Mapping[str, Iterable[bytes]] | None = None,
    ) -> Caller:
        """Who calls: what a call shows in its header, and its connection's authentication context."""
        who, now = policy.anonymous(listener, peer), time.time()
        if context is not None:
            names = tls.names_of(context)
            who = policy.with_certificate(who, names, self.access.certificates, tls.ends_of(context), now)
        if authorization is not None:
            secret = policy.secret_of(authorization)
            if secret is None:
                return policy.malformed_token(who)
            return policy.with_token(who, self._book.find(secret), now)
        return who

    def require_allowed(self, method: str, who: Caller, peer: str) -> None:
        """Unauthenticated or Forbidden, which is counted and written down, if a caller may not call a method."""
        error = policy.refusal(method, who)
        if error is not None:
            self.turn_away(method, who, peer, error)
            raise error

    def turn_away(self, method: str, who: Caller, peer: str, error: EdgedError) -> None:
        """Counts a refusal, and writes it down."""
        code = status_of(error).name
        self.turned_away[code] += 1
        line = Line(now_told(), who.name, method, code, tuple(sorted(who.roles)), peer, message=str(error))
        self.audit.turned_away(line, policy.host_of(peer) or who.key)

    def record(
        self, method: str, who: Caller, peer: str, what: object, outcome: str, message: str, began: float
    ) -> None:
        """Writes down what an operator asked for; `what` is the message, or its bytes; `began` of perf_counter."""
        told = what if isinstance(what, dict) else self._about(method, what)
        took = round((time.perf_counter() - began) * 1e3, 1)
        roles = tuple(sorted(who.roles))
        self.audit.write(Line(now_told(), who.name, method, outcome, roles, peer, told, message, took))

    @contextlib.contextmanager
    def under_way(self, who: Caller) -> Iterator[None]:
        """While a call runs by what its caller showed: once that is no longer good, the call ends with `lost`."""
        task = asyncio.current_task()
        if task is None:
            yield
            return
        running = self._open.setdefault(who, set())
        running.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if (lost := self.lost(who)) is not None:
                raise lost from None
            raise
        finally:
            running.discard(task)
            if not running:
                self._open.pop(who, None)

    def lost(self, who: Caller) -> EdgedError | None:
        """Why the calls of a caller may run no longer; None where what it showed is as good as it was."""
        if who.key.startswith("token "):
            # By its digest: another one may have its name by now.
            token = next((token for token in self._book.tokens if token.sha256 in who.proof), None)
            if token is None or (token.expires and time.time() >= token.expires):
                return Unauthenticated(f"the {who.name} is no longer good; make another: edged tokens new")
        elif who.given - policy.roles_of(who.proof, self.access.certificates):
            return Forbidden(f"the {who.name} has lost a role here; see access.certificates")
        return None

    def _expel(self) -> None:
        for who, tasks in list(self._open.items()):
            if self.lost(who) is not None:
                for task in list(tasks):
                    task.cancel()

    def _changed(self) -> None:
        self.generation += 1
        self._expel()

    def _file(self, access: Access) -> TokenFile:
        return TokenFile(tokens_path(access, self._state))

    def _about(self, method: str, what: object) -> dict[str, str]:
        if isinstance(what, Message):
            return about(what)
        kind = self._requests.get(method)
        if kind is None or not isinstance(what, bytes):
            return {}
        try:
            return about(kind.FromString(what))
        except DecodeError:
            return {}


def _begins(tls: Tls) -> tuple[object, ...]:
    """What a listener was opened with."""
    return bool(tls.certificate), bool(tls.client_ca), tls.without_client_certificate, tls.on_loopback


def tokens_path(access: Access, state: Path) -> Path:
    """Where tokens are kept."""
    return Path(access.tokens_file).absolute() if access.tokens_file else state / "access" / "tokens.json"
