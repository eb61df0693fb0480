"""Finds problems of a configuration on this box, without starting anything.

Each finding is the path of a key and a line with the problem and the fix. Permissions are checked for the user who runs
the check, not for the service's user.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path as File
from typing import TypeAlias

from edged.api.auth import policy, tls
from edged.api.auth.tokens import TokenFile
from edged.api.endpoints.address import tcp_address, unix_path
from edged.api.endpoints.zmq_socket import place
from edged.config import Config
from edged.config.keys import Path
from edged.daemon import locations
from edged.errors import EdgedError
from edged.models.entries import check_name
from edged.references.reference import parse

Finding: TypeAlias = tuple[Path, str]
# A host and a port, or a path and 0.
_Place: TypeAlias = tuple[str, int]

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_DEFAULT: Path = ("listen",)  # the default socket, which differs by user


def preflight(config: Config) -> Iterator[Finding]:
    """Yield all problems of a configuration on this box."""
    yield from _folders(config)
    yield from _models(config)
    yield from _listeners(config)
    yield from _access(config)


def _folders(config: Config) -> Iterator[Finding]:
    if config.state:
        yield from ((("state",), why) for why in _unwritable(locations.state_dir(config)))
    if config.cache:
        yield from ((("cache",), why) for why in _unwritable(locations.cache_dir(config)))
    if config.state and config.state == config.cache:
        yield ("cache",), f"{config.cache} is also the directory for models ('state'); use another directory"


def _unwritable(folder: File) -> Iterator[str]:
    """Yield the reason if a folder cannot be written or created."""
    there = next(each for each in (folder, *folder.parents) if os.path.lexists(each) or each == each.parent)
    what = f"{folder}" if there == folder else f"{folder} does not exist and cannot be created: {there}"
    if not there.is_dir():
        yield f"{what} is not a directory; use another path"
        return
    try:
        with tempfile.TemporaryFile(dir=there):  # only a write proves that the folder is writable; the file has no name
            pass
    except OSError as error:
        why = f"cannot be written by user {os.geteuid()} ({error.strerror or error})"
        yield f"{what} {why}; change the owner, or use another directory"


def _models(config: Config) -> Iterator[Finding]:
    for name, path in config.models.items():
        try:
            locations.check_model_name(config, name)
        except EdgedError as error:
            yield ("models", name), str(error)
        try:
            is_file = parse(path) is None
        except EdgedError as error:
            yield ("models", name), str(error)
            continue
        yield from ((("models", name), why) for why in (_unreadable(File(path)) if is_file else ()))
    for index, name in enumerate(config.startup_models):
        if name == "*":
            continue
        try:
            check_name(name.partition(":")[0])
        except EdgedError as error:
            yield (f"startup_models[{index}]",), str(error)


def _unreadable(path: File) -> Iterator[str]:
    """Yield the reason if a file cannot be read."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        yield f"{path} cannot be read: {error.strerror or error}; correct the path"
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        yield f"{path} is not a file or folder; name a model file"
    elif not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        yield f"{path} cannot be read by user {os.geteuid()}; change the permissions (chmod, chown)"


def _access(config: Config) -> Iterator[Finding]:
    """Check certificates and grants. Each message begins with the configuration key that has the problem."""
    if config.tls.certificate:
        yield from _raised(lambda: tls.read(config.tls, time.time()))
    guarded = [*locations.addresses(config), *locations.guarded_http(config)]
    others = locations.unguarded_http(config)
    yield from _raised(lambda: policy.require_known(config.access, config.tls, guarded, others))
    if config.access.tokens_file:
        yield from _raised(TokenFile(File(config.access.tokens_file)).read, ("access", "tokens_file"))


def _raised(check: Callable[[], object], key: Path = ()) -> Iterator[Finding]:
    try:
        check()
    except EdgedError as error:
        yield key or tuple(str(error).partition(" ")[0].split(".")), str(error)


def _listeners(config: Config) -> Iterator[Finding]:
    """Yield a finding for each invalid address, and for each address that two listeners would share."""
    taken: list[tuple[Path, str, _Place]] = []
    for path, address, meaning in _addresses(config):
        try:
            found = meaning(address)
        except EdgedError as error:
            yield path, str(error)
            continue
        if found[0].startswith("/") and path != _DEFAULT:
            yield from ((path, why) for why in _no_socket(File(found[0])))
        same = next((other for other, _, its in taken if _is_same(found, its)), None)
        if same is not None:
            yield path, f"{address} is also the address of {'.'.join(same)}; choose a different address"
        taken.append((path, address, found))


def _addresses(config: Config) -> Iterator[tuple[Path, str, Callable[[str], _Place]]]:
    """Yield every address with its key and the function that parses it."""
    for index, address in enumerate(locations.addresses(config)):
        yield (f"listen[{index}]",) if config.listen else _DEFAULT, address, lambda address: _grpc(address, config)
    for key, address in (("http", config.http.listen), ("metrics", config.metrics.listen)):
        if address:
            yield (key, "listen"), address, lambda address: _socket(address, address in config.access.unencrypted)
    if config.page.listen:
        yield ("page", "listen"), config.page.listen, lambda address: _page(address, config)
    if config.frigate is not None:
        remote = config.frigate.allow_remote
        yield (
            ("frigate", "endpoint"),
            config.frigate.endpoint,
            lambda address: _zmq(address, "frigate.endpoint", remote),
        )
    if config.zmq.frames:
        yield ("zmq", "frames"), config.zmq.frames, lambda address: _zmq(address, "zmq.frames", None)
    if config.zmq.publish:
        yield ("zmq", "publish"), config.zmq.publish, lambda address: _zmq(address, "zmq.publish", None)


def _grpc(address: str, config: Config) -> _Place:
    """Parse an address for gRPC. An address that other machines can reach must be secured."""
    policy.listener_policy(address, config.access, config.tls)
    return _socket(address, allow_remote=True)


def _page(address: str, config: Config) -> _Place:
    """Parse the address of the page. An address that other machines can reach must have TLS."""
    policy.page_policy(address, config.access, config.tls)
    return tcp_address(address, allow_remote=True)


def _socket(address: str, allow_remote: bool = False) -> _Place:
    return (
        (str(unix_path(address).absolute()), 0) if address.startswith("unix:") else tcp_address(address, allow_remote)
    )


def _zmq(address: str, key: str, allow_remote: bool | None) -> _Place:
    target, path = place(address, key, allow_remote)
    if path is not None:
        return str(path), 0
    host, _, port = target.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)


def _no_socket(path: File) -> Iterator[str]:
    """Yield the reason if a socket cannot be created. An existing socket is no problem, because it may belong to a
    running daemon."""
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        yield f"{path} exists and is not a socket; remove the file, or listen elsewhere"
    elif not path.exists():
        yield from _unwritable(path.parent)


def _is_same(one: _Place, other: _Place) -> bool:
    """Whether two addresses conflict. Addresses with port 0 never conflict: the system chooses a free port for each."""
    if one[1] != other[1] or (not one[1] and not one[0].startswith("/")):
        return False
    hosts = {one[0], other[0]}
    everywhere = hosts & {"0.0.0.0", "::"}  # noqa: S104 - compared, not listened on
    return len(hosts) == 1 or bool(everywhere) or ("localhost" in hosts and hosts <= set(_LOOPBACK))
