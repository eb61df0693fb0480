"""Who may do what: the tables [tls] and [access] of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

Role: TypeAlias = Literal["read", "infer", "operate"]

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What TCP is encrypted with; files are read again when they change."""

    certificate: Annotated[
        str,
        msgspec.Meta(
            description="PEM file of the certificate with its chain; empty for no TLS, and then for loopback alone.",
            examples=["/etc/edged/tls/box.pem"],
        ),
    ] = ""
    key: Annotated[
        str, msgspec.Meta(description="PEM file of the certificate's key.", examples=["/etc/edged/tls/box.key"])
    ] = ""
    client_ca: Annotated[
        str,
        msgspec.Meta(
            description="PEM file of the authorities that certificates of clients must come from; empty where none is"
            " asked for.",
            examples=["/etc/edged/tls/clients.pem"],
        ),
    ] = ""
    without_client_certificate: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="Addresses of listen where none is asked for all the same, as for clients with tokens.",
            examples=[["0.0.0.0:8002"]],
        ),
    ] = ()
    on_loopback: Annotated[
        bool,
        msgspec.Meta(description="Whether addresses of loopback have TLS as well; otherwise they are in the clear."),
    ] = True

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("tls.certificate and tls.key go together; give both or neither")
        if self.client_ca and not self.certificate:
            raise ValueError("tls.client_ca needs tls.certificate and tls.key; give all three")


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who may do what. Roles are "infer", "read" and "operate"; docs/security.md says what each may."""

    unix: Annotated[
        tuple[Role, ...],
        msgspec.Meta(
            description="Roles of clients that can open the default socket; the operator socket has all roles."
        ),
    ] = ("infer", "read")
    loopback: Annotated[
        tuple[Role, ...],
        msgspec.Meta(
            description="The roles of clients that come over loopback without TLS: every user of this machine, and"
            " every container in its network. Operators use the socket, or a token."
        ),
    ] = ("infer", "read")
    grants: Annotated[
        dict[str, tuple[Role, ...]],
        msgspec.Meta(
            description="The roles of clients that reach an address of listen or http.listen, where others are wanted.",
            examples=[{"localhost:8001": ["infer"]}],
        ),
    ] = {}
    certificates: Annotated[
        dict[str, tuple[Role, ...]],
        msgspec.Meta(
            description="The roles of clients by a name in their certificate, its common name or an alternative one.",
            examples=[{"frigate.lan": ["infer", "read"]}],
        ),
    ] = {}
    tokens_file: Annotated[
        str,
        msgspec.Meta(
            description="Tokens as edged tokens writes them; empty for access/tokens.json in the state directory.",
            examples=["/etc/edged/tokens.json"],
        ),
    ] = ""
    client_streams: Annotated[_Count, msgspec.Meta(description="Streams of one client at a time.")] = 1024
    client_requests: Annotated[_Count, msgspec.Meta(description="Requests of one client at a time.")] = 4096
    client_mb: Annotated[
        _Count, msgspec.Meta(description="Mebibytes of requests of one client that are under way.")
    ] = 512
    client_per_second: Annotated[
        _Count,
        msgspec.Meta(description="Requests and frames of one client in a second; bursts may have as many at once."),
    ] = 50_000
    audit_mb: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=1 << 20,
            description="Mebibytes that the records of what operators did may take, in the state directory.",
        ),
    ] = 16
    foreign_files: Annotated[
        Literal["refuse", "accept"],
        msgspec.Meta(
            description="Whether models and engines are used that another user owns, or that everybody may write:"
            ' "refuse" or "accept".'
        ),
    ] = "refuse"
