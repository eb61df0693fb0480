"""Frigate's own provider for OpenAI's protocol against a real daemon. Requires the provider's file:

EDGED_TEST_FRIGATE_OPENAI=frigate/genai/plugins/openai.py python -m pytest tests/integration/test_frigate_openai.py

Stand-ins replace what the provider imports from Frigate and httpx; the provider itself is unchanged.
"""

from __future__ import annotations

import asyncio
import enum
import importlib.util
import os
import sys
import types
from typing import Any

import cv2
import numpy as np
import pytest

from tests.integration.daemon import Daemon
from tests.tiny_language import ANSWER, write_genai

_PROVIDER = os.environ.get("EDGED_TEST_FRIGATE_OPENAI", "")
pytestmark = pytest.mark.skipif(
    not _PROVIDER, reason="EDGED_TEST_FRIGATE_OPENAI does not name the file of Frigate's provider"
)


class _Client:
    """The part of Frigate's base class that the provider uses."""

    def __init__(self, genai_config: Any, timeout: int = 60) -> None:
        self.genai_config, self.timeout = genai_config, timeout
        self.provider = self._init_provider()

    def _init_provider(self) -> Any:
        raise NotImplementedError


class _Kind(enum.Enum):
    openai = "openai"


def provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    stand_ins = {
        "httpx": {"TimeoutException": TimeoutError},
        "frigate": {},
        "frigate.config": {"GenAIProviderEnum": _Kind},
        "frigate.genai": {"GenAIClient": _Client, "register_genai_provider": lambda kind: lambda found: found},
    }
    for name, contents in stand_ins.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("frigate_openai", _PROVIDER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delitem(sys.modules, "httpx")  # OpenAI's client would take it for the real one
    return module


def test_frigates_own_provider_describes_pictures_and_chats(monkeypatch: pytest.MonkeyPatch) -> None:
    module = provider(monkeypatch)
    daemon = Daemon(builds=False, config='[http]\nlisten = "localhost:0"\n', endpoints=1)
    write_genai(daemon.models / "sight" / "1", pictures=True)
    with daemon:
        config = types.SimpleNamespace(
            api_key="none", base_url=f"{daemon.addresses[2]}/v1", model="sight", provider_options={}, runtime_options={}
        )
        client = module.OpenAIClient(config)
        assert client.list_models() == ["sight"]
        assert client.get_context_size() == 512
        for colour, pixel in (("red", (0, 0, 255)), ("blue", (255, 0, 0))):
            picture = cv2.imencode(".jpg", np.full((48, 64, 3), pixel, np.uint8))[1].tobytes()
            assert client._send("What is it?", [picture]) == ANSWER.format(colour)
        schema = {"type": "object", "properties": {"seen": {"type": "boolean"}}, "required": ["seen"]}
        form = {"type": "json_schema", "json_schema": {"name": "seen", "strict": True, "schema": schema}}
        assert client._send("Is it?", [], form) in ('{"seen": true}', '{"seen": false}')
        found = client.chat_with_tools([{"role": "user", "content": "a green door"}])
        assert (found["content"], found["finish_reason"]) == (ANSWER.format("green"), "stop")

        async def stream() -> list[Any]:
            return [each async for each in client.chat_with_tools_stream([{"role": "user", "content": "a red door"}])]

        parts = asyncio.run(stream())
        assert "".join(value for kind, value in parts if kind == "content_delta") == ANSWER.format("red")
        assert parts[-1][1]["finish_reason"] == "stop"
