"""The files of the page, read once and sent with an ETag."""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from importlib import resources
from typing import Final

from edged.api.http.exchange import HttpResponse

# The browser refuses inline scripts and styles, and those of other sites. Other sites cannot show the page in a frame.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self';"
    " form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


class PageFiles:
    """The files in the folder `static`, by their paths; `/` is index.html."""

    def __init__(self) -> None:
        folder = resources.files(__package__) / "static"
        self._files = {f"/{file.name}": file.read_bytes() for file in folder.iterdir() if file.is_file()}
        self._files["/"] = self._files.pop("/index.html")
        self._tags = {path: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for path, data in self._files.items()}

    def find(self, path: str, known: str) -> HttpResponse | None:
        """Return the response with a file, or 304 if the browser has the version with the ETag `known`; None for an
        unknown path."""
        data = self._files.get(path)
        if data is None:
            return None
        kind = _TYPES["html" if path == "/" else path.rpartition(".")[2]]
        headers = (
            ("content-type", kind),
            ("content-security-policy", _POLICY),
            ("cache-control", "no-cache"),
            ("etag", self._tags[path]),
        )
        if known == self._tags[path]:
            return HttpResponse(HTTPStatus.NOT_MODIFIED, headers=headers)
        return HttpResponse(parts=(data,), headers=headers)
