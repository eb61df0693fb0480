"""A client's credentials (CA, certificate, token) and the gRPC channels made with them.

TLS protects data that leaves the machine; unix sockets and loopback need no TLS. A token is sent with every call as the
HTTP header `authorization: Bearer TOKEN` (RFC 6750), but never unencrypted to another machine. The header is plain
metadata, because gRPC's call credentials refuse connections without TLS, even unix sockets, and cost a thread for each
call.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import grpc
import msgspec

from edged.client.address import TLS, UNIX, is_here
from edged.errors import InvalidInput

Path_: TypeAlias = str | os.PathLike[str] | None

_LOG = logging.getLogger(__name__)
# A machine that loses power does not close its connections. Without keepalive, a client that waits for the daemon's
# events would wait forever.
_ALIVE = (("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000))
# No limit for frames and tensors. The backoff is short, so that a client finds a restarted daemon within a second.
# Clients share no connections, since the backoff of one client would delay the next. The proxy of http_proxy is
# ignored: gRPC would use it even for localhost.
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # The flow-control window has room for the largest usual answers from the start. Otherwise gRPC would ping with each
    # answer to measure the connection.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_LONGEST_TOKEN = 4096  # bytes; servers limit all headers of a call, by default to 8 KiB


class Credentials(msgspec.Struct, frozen=True):
    """A client's credentials. `ca`, `certificate` and `key` are paths of PEM files, empty if not used. `ca` has the
    authorities that may sign the daemon's certificate; if it is empty, gRPC's own list is used. `certificate` has the
    client's certificate chain, and `key` its private key. `token` is secret and never printed. `server_name` is the
    name in the daemon's certificate, if it differs from the host of the address."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    server_name: str = ""

    @classmethod
    def of(
        cls,
        *,
        ca: Path_ = None,
        certificate: Path_ = None,
        key: Path_ = None,
        token: str = "",
        token_file: Path_ = None,
        server_name: str = "",
    ) -> Credentials:
        """Make credentials from paths. `token_file` contains the token in one line. Raises InvalidInput if this file
        cannot be read or has no valid token, if both `token` and `token_file` are given, or if only one of
        `certificate` and `key` is given."""
        if bool(certificate) != bool(key):
            raise InvalidInput("only one of the client certificate and its key is given; give both or neither")
        if token and token_file:
            raise InvalidInput("both a token and a token file are given; leave out one of them")
        secret = read_token(token_file) if token_file else checked_token(token, "the token")
        return cls(_path(ca), _path(certificate), _path(key), secret, server_name.strip())

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Credentials:
        """Make credentials, as `of` does, from EDGED_CA, EDGED_CERTIFICATE, EDGED_KEY, EDGED_TOKEN or EDGED_TOKEN_FILE,
        and EDGED_SERVER_NAME."""
        given = os.environ if environment is None else environment
        names = ("ca", "certificate", "key", "token", "token_file", "server_name")
        return cls.of(**{name: given.get(f"EDGED_{name.upper()}", "").strip() for name in names})

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in ("ca", "certificate", "key", "server_name")]
        return f"Credentials({', '.join(shown)}, token={'...' if self.token else ''!r})"

    __str__ = __repr__

    @property
    def wants_tls(self) -> bool:
        """Whether a CA or a client certificate is given, which implies TLS."""
        return bool(self.ca or self.certificate)


def read_token(path: str | os.PathLike[str]) -> str:
    """Read a token from its file; warn once if other users may read that file. Raises InvalidInput if the file cannot
    be read or has no valid token."""
    place = Path(path).expanduser()
    try:
        text, mode = place.read_text(), place.stat().st_mode
    except OSError as error:
        raise InvalidInput(f"the token file {place} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the token file {place} is not text; a token is one line of printable ASCII") from error
    if not text.strip():
        raise InvalidInput(f"the token file {place} is empty; write the token into it")
    if is_exposed(mode):
        _warn_exposed(place)
    return checked_token(text, f"the token in {place}")


@functools.cache
def _warn_exposed(place: Path) -> None:
    """Warn that other users may read a token file. With `functools.cache`, only the first call for a file warns."""
    _LOG.warning("the token file %s is readable by other users; to protect the token: chmod 600 %s", place, place)


def is_exposed(mode: int) -> bool:
    """Whether a file mode allows users outside the owner and group to read."""
    return bool(mode & stat.S_IROTH)


def checked_token(text: str, what: str) -> str:
    """Return a token without surrounding spaces. Raises InvalidInput if the token cannot be the value of a header; the
    message does not contain the token."""
    token = text.strip()
    if not token.isascii() or any(not "!" <= character <= "~" for character in token):
        raise InvalidInput(f"{what} is invalid; a token is one line of printable ASCII without spaces")
    if len(token) > _LONGEST_TOKEN:
        raise InvalidInput(f"{what} is longer than {_LONGEST_TOKEN} characters; check that this is the right token")
    return token


def is_secured(target: str, credentials: Credentials) -> bool:
    """Whether the connection to a resolved target uses TLS. Raises InvalidInput if a token would leave the machine
    without TLS."""
    if target.startswith(UNIX):
        return False
    if target.startswith(TLS) or credentials.wants_tls:
        return True
    if credentials.token and not is_here(target):
        raise InvalidInput(f"the token is not sent to {target} unencrypted; give a CA (EDGED_CA), or {TLS}{target}")
    return False


def channel(
    target: str,
    credentials: Credentials | grpc.ChannelCredentials | None,
    more: Sequence[tuple[str, int | str]] = (),
    place: str = "",
) -> grpc.Channel:
    """Open a channel to a resolved target. If `credentials` is None, read them from the environment. `more` are further
    channel options. `place` is the address to which gRPC connects, for example a list of several daemons. If `place` is
    empty, gRPC connects to the target.

    Raises InvalidInput if a file cannot be used or a token would be sent unencrypted.
    """
    options = [*_OPTIONS, *more]
    if place or not is_here(target):  # any of several daemons may be on another machine
        options += _ALIVE
    place = place or target.removeprefix(TLS)
    if isinstance(credentials, grpc.ChannelCredentials):
        return grpc.secure_channel(place, credentials, options)
    known = Credentials.from_environment() if credentials is None else credentials
    if is_secured(target, known):
        if known.server_name:
            options.append(("grpc.ssl_target_name_override", known.server_name))
        opened = grpc.secure_channel(place, _tls(known), options)
    else:
        opened = grpc.insecure_channel(place, options)
    if not known.token:
        return opened
    return with_metadata(opened, (("authorization", f"Bearer {known.token}"),))


def shared_by(
    targets: tuple[str, ...], credentials: Credentials | grpc.ChannelCredentials | None
) -> Credentials | grpc.ChannelCredentials:
    """Return the credentials for several daemons. With TLS, `server_name` must be a name that all their certificates
    have. Raises InvalidInput if this name is missing, or if a token would be sent unencrypted to one of the daemons."""
    if isinstance(credentials, grpc.ChannelCredentials):
        return credentials
    known = Credentials.from_environment() if credentials is None else credentials
    secured = [is_secured(each, known) for each in targets]  # checks the token for all targets
    if any(secured) and not known.server_name:
        raise InvalidInput(
            "several daemons with TLS need one name in all their certificates; give this name as server_name"
            " (EDGED_SERVER_NAME)"
        )
    return known


def with_metadata(channel: grpc.Channel, metadata: tuple[tuple[str, str], ...]) -> grpc.Channel:
    """Return a channel that adds metadata to every call."""
    inner: Any = channel
    if isinstance(inner, _Authorized):
        inner, metadata = inner._channel, (*inner._metadata, *metadata)
    return cast("grpc.Channel", _Authorized(inner, metadata))


class _Authorized:
    """A channel that adds metadata to every call."""

    _WAYS = frozenset(("unary_unary", "unary_stream", "stream_unary", "stream_stream"))

    def __init__(self, channel: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._channel, self._metadata = channel, metadata

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        if name not in self._WAYS:
            return found

        def authorized(*args: Any, **kwargs: Any) -> Any:
            plain = found(*args, **kwargs)
            call: Any = functools.partial(plain, metadata=self._metadata)
            if hasattr(plain, "future"):  # only calls with one answer have `future`
                call.future = functools.partial(plain.future, metadata=self._metadata)
            return call

        return authorized


def _tls(credentials: Credentials) -> grpc.ChannelCredentials:
    require_usable(credentials)
    ca, key, certificate = (
        Path(path).read_bytes() if path else None for path in (credentials.ca, credentials.key, credentials.certificate)
    )
    return grpc.ssl_channel_credentials(ca, key, certificate)


def require_usable(credentials: Credentials) -> None:
    """Raise InvalidInput if TLS cannot use a file. The files are loaded with `ssl`, because `ssl` reports the reason,
    whereas gRPC reports only that it cannot connect."""
    import ssl  # imported here, since few clients need it

    def attempt(what: str, path: str, load: Callable[[], None]) -> None:
        try:
            load()
        except ssl.SSLError as error:
            why = (error.reason or str(error)).lower().replace("_", " ")
            raise InvalidInput(f"the {what} {path} cannot be used: {why}; give a PEM file") from error
        except OSError as error:
            raise InvalidInput(f"the {what} {error.filename or path} cannot be read: {error.strerror}") from error

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if credentials.ca:
        attempt("CA", credentials.ca, lambda: context.load_verify_locations(credentials.ca))
    if credentials.certificate:
        chain, key = credentials.certificate, credentials.key
        # The empty passphrase prevents a prompt at the terminal; gRPC does not support passphrases.
        attempt("certificate", f"{chain} with its key {key}", lambda: context.load_cert_chain(chain, key, lambda: ""))


def _path(path: Path_) -> str:
    return str(Path(path).expanduser()) if path else ""
