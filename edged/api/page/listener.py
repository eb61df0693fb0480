"""Opens the page's address."""

from __future__ import annotations

from functools import partial

from edged.api.auth.guard import Guard
from edged.api.auth.policy import page_policy
from edged.api.endpoints.address import listening_sockets, tcp_address
from edged.api.grpc.operations import OperationsService
from edged.api.http.server import Server
from edged.api.page.app import PageApp
from edged.api.page.feed import Feed
from edged.api.page.files import PageFiles
from edged.config import Page
from edged.engines.controller import Controller

_BACKLOG = 128


class PageListener:
    """Listens on the configured address from `start` until `stop`; `address` is the URL of the page."""

    def __init__(self, page: Page, controller: Controller, operations: OperationsService, guard: Guard) -> None:
        self._listen, self._guard = page.listen, guard
        self._controller, self._operations = controller, operations
        self._server: Server | None = None
        self.address = ""

    async def start(self) -> None:
        """Start to answer. Raises ConfigError."""
        policy = page_policy(self._listen, self._guard.access, self._guard.tls)
        host, port = tcp_address(self._listen, allow_remote=True)
        feed = Feed(self._controller, self._operations)
        app = PageApp(self._guard, self._listen, feed, self._operations, PageFiles())
        certificate = self._guard.certificate if policy.has_tls else None
        # Browsers sign in with a token, even if other addresses ask for client certificates.
        server = Server(app, partial(certificate.context, False) if certificate is not None else None)
        sockets = listening_sockets(host, port, _BACKLOG, "[page]")
        port = sockets[0].getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        self.address = f"{'https' if certificate is not None else 'http'}://{name}:{port}"
        await server.start(sockets)
        self._server = server

    async def stop(self, grace: float) -> None:
        """Accept no more requests. Let running requests end within `grace` seconds, but at most 0.2 seconds."""
        if self._server is not None:
            await self._server.stop(min(grace, 0.2))  # events and videos have no end
