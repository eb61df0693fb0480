"""Removes what identifies a box or its owner from texts that leave the box. The box's name becomes `<host>`, for
example.

There are two steps, since each misses something. First, texts that are known from this box (its names, users, homes,
serial numbers and network cards) are replaced wherever they occur. Second, every text that looks like an address, a
path below a home, a token or a serial number is replaced. Neither step finds a secret that the box does not know and
that is a short word of letters, unless a word such as `password` precedes it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pwd
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from edged.device.root import Root

# Names that thousands of boxes have; replacing them would only make the text hard to read.
COMMON = frozenset(
    (
        "localhost",
        "root",
        "edged",
        "nobody",
        "ubuntu",
        "debian",
        "raspberrypi",
        "jetson",
        "nvidia",
        "tegra-ubuntu",
        "pi",
    )
)
_SHORTEST = 2  # characters of the shortest name that is replaced
_LONG = 8  # a name of this length or more is replaced also within words
_SERIALS = (
    "proc/device-tree/serial-number",
    "sys/firmware/devicetree/base/serial-number",
    *(f"sys/class/dmi/id/{each}_serial" for each in ("board", "chassis", "product")),
    "sys/class/dmi/id/product_uuid",
    "sys/class/dmi/id/product_asset_tag",
    "etc/machine-id",
    "var/lib/dbus/machine-id",
    "sys/block/mmcblk0/device/serial",
    "sys/block/mmcblk0/device/cid",
    "sys/block/nvme0n1/device/serial",
)
_NO_SERIAL = re.compile(r"(?i)[0\W]*|none|default.*|to be filled.*|not specified|system serial.*|unknown")
_FIRST_USER = 1000  # users with lower ids belong to the system


class Identity(msgspec.Struct, frozen=True):
    """The texts that must not leave this box, by kind: `host`, `user`, `home`, `folder`, `serial`, `network card`."""

    texts: dict[str, tuple[str, ...]] = {}

    @classmethod
    def of(cls, root: Root, folders: Iterable[Path] = (), hosts: Iterable[str] = ()) -> Identity:
        """Return the identity of this box. `folders` are further folders, such as the folder with models; the result
        has those that are below a home. `hosts` are the names of other machines."""
        users = list(_users())
        homes = {Path.home(), *(Path(user.pw_dir) for user in users)} - {Path("/"), Path("/root")}
        own = (sys.executable, sys.prefix, os.getcwd(), *map(str, folders))
        inside = [each for each in own if any(Path(each).is_relative_to(home) for home in (*homes, Path("/root")))]
        return cls(
            {
                "folder": tuple(inside),
                "home": tuple(map(str, homes)),
                "host": (*_hosts(root), *hosts),
                "user": tuple(name for user in users for name in (user.pw_name, user.pw_gecos.split(",")[0])),
                "serial": tuple(_serials(root)),
                "network card": tuple(
                    filter(None, ((root.read(each) or "").strip() for each in root.glob("sys/class/net/*/address")))
                ),
            }
        )


def _users() -> Iterator[pwd.struct_passwd]:
    """Yield the accounts of people, and the account that runs this program."""
    names = {os.environ.get(name, "") for name in ("SUDO_USER", "LOGNAME", "USER")}
    for user in pwd.getpwall():
        is_person = user.pw_uid >= _FIRST_USER and user.pw_name != "nobody"
        if is_person or user.pw_name in names or user.pw_uid == os.geteuid():
            yield user


def _hosts(root: Root) -> Iterator[str]:
    yield (root.read("etc/hostname") or "").strip()
    for name in (socket.gethostname(), os.uname().nodename):
        yield name
        yield name.partition(".")[0]
    with contextlib.suppress(OSError):
        yield socket.getfqdn()


def _serials(root: Root) -> Iterator[str]:
    for path in _SERIALS:
        yield (root.read(path) or "").strip()
    for match in re.finditer(r"^Serial\s*:\s*(\S+)$", root.read("proc/cpuinfo") or "", re.MULTILINE):
        yield match[1]


_HOME = re.compile(r"(?:/home|/Users|/root|~)(?:/[^\s'\"`:;,|)\]<>]*)+|/root\b")
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"`<>]+")
_MAIL = re.compile(r"[^\s@'\"<>=:,;|()]+@[^\s@'\"<>,;|()]+")
_TLS = re.compile(r"\btls:[^\s'\"`,;)]+")
_NAMED = re.compile(
    r"(?i)\b(token|password|passwd|secret|api[_-]?key|authorization|serial)(\"?\s*[:=]\s*\"?)[^\s\"',;]+"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]{6,}")
_MAC = re.compile(r"(?i)(?<![0-9a-f])[0-9a-f]{2}(?:([:-])[0-9a-f]{2})(?:\1[0-9a-f]{2}){4}(?![0-9a-f])")
_IPV4 = re.compile(r"(?<!\d)(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d)")
_IPV6 = re.compile(
    r"(?i)(?<![\w:])(?:[0-9a-f]{0,4}:){2,8}"  # the eighth colon follows the address
    r"(?:\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)|[0-9a-f]{0,4}(?:%\w+)?(?![\w:]|\.\d))"
)
_BRACKET = re.compile(r"(?i)%5([bd])")  # as gRPC writes the brackets of an IPv6 address
_LOCAL = re.compile(r"(?i)(?<![\w-])[\w-]+(?:\.[\w-]+)*\.(?:local|lan|home|internal|intranet|localdomain|arpa)\b")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OWN_TOKEN = re.compile(r"edged_[A-Za-z0-9_-]{16,}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,}")
_CODE = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}(?![A-Za-z0-9])")
_LONG_TOKEN = re.compile(r"[A-Za-z0-9]{40,}")


class Redactor:
    """Replaces secrets in texts. `versions` are version numbers that look like addresses, such as 10.3.0.30; these
    are not replaced."""

    def __init__(self, identity: Identity, versions: Iterable[str] = ()) -> None:
        self._versions = frozenset(versions)
        known = [(text, kind) for kind, texts in identity.texts.items() for text in texts if _is_secret(kind, text)]
        # The longest text first: a path contains a home, and a home contains a name.
        self._known = [(_pattern(text), f"<{kind}>") for text, kind in sorted(known, key=lambda each: -len(each[0]))]

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        for pattern, instead in self._known:
            text = pattern.sub(instead, text)
        text = _URL.sub(r"\1<address>", text)
        text = _HOME.sub("<home>", text)
        text = _MAIL.sub("<address>", text)
        text = _TLS.sub("tls:<address>", text)
        text = _BEARER.sub(r"\1 <secret>", text)
        text = _NAMED.sub(r"\1\2<secret>", text)
        text = _MAC.sub("<network card>", text)
        text = _BRACKET.sub(lambda found: "[" if found[1] in "bB" else "]", text)
        text = _IPV6.sub(_address, text)
        text = _IPV4.sub(self._unless_version, text)
        text = _LOCAL.sub("<host>", text)
        text = _UUID.sub("<id>", text)
        text = _OWN_TOKEN.sub("<secret>", text)
        text = _TOKEN.sub(_token, text)
        text = _LONG_TOKEN.sub("<secret>", text)
        return _CODE.sub("<id>", text)

    def all(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Return the texts without secrets. Their names are unchanged, because the names are edged's own words."""
        return {name: self.text(text) for name, text in texts.items()}

    def _unless_version(self, found: re.Match[str]) -> str:
        return found[0] if found[0] in self._versions else "<address>"


def _is_secret(kind: str, text: str) -> bool:
    if len(text) < _SHORTEST or text.lower() in COMMON:
        return False
    if kind == "serial" and _NO_SERIAL.fullmatch(text):
        return False
    return not (kind == "network card" and not text.strip("0:"))


def _pattern(text: str) -> re.Pattern[str]:
    """Return a pattern that finds the text and ignores case; a short text matches only as a whole word."""
    escaped = re.escape(text)
    is_word = len(text) < _LONG
    return re.compile(f"(?i)(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])" if is_word else f"(?i){escaped}")


def _address(found: re.Match[str]) -> str:
    """Return what replaces a text that contains colons. Only an IP address is replaced, not a time of day or a PCI
    address. A colon that follows the IP address stays."""
    for text in (found[0], found[0].removesuffix(":")):
        with contextlib.suppress(ValueError):
            if not text.strip(":"):  # "::" also separates words
                continue
            ipaddress.ip_address(text.partition("%")[0])
            return "<address>" + found[0][len(text) :]
    return found[0]


def _token(found: re.Match[str]) -> str:
    """Return the replacement of a long word. A word with capitals, small letters and digits is a token. Any other word
    is a name, such as a library's, and stays."""
    text = found[0]
    is_mixed = any(c.islower() for c in text) and any(c.isupper() for c in text) and any(c.isdigit() for c in text)
    return "<secret>" if is_mixed else text
