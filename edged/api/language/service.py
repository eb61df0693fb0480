"""edged.v1.Language, and the code that all protocols for language models share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from edged.api.auth import identity
from edged.api.grpc.rpc import Context, Service
from edged.api.language.requests import ChatMessage, ChatRequest, generation
from edged.api_types import LanguageModelInfo
from edged.engines import report
from edged.engines.controller import Controller
from edged.errors import InvalidInput
from edged.ipc.language_messages import Text
from edged.language.model import PlannedLanguageModel
from edged.message_mapper import to_message
from edged.proto import language_pb2 as pb


class LanguageService:
    """Answers chats from the language models of a controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.service = Service(pb.DESCRIPTOR.services_by_name["Language"], self)

    def find(self, name: str) -> PlannedLanguageModel:
        """Return a language model; if the name is empty, return the daemon's only language model. Raises ModelNotFound,
        or InvalidInput if the model is not a language model."""
        if name and self._controller.language.find(name) is None:
            self._controller.find_any(name)  # raises if no model has this name
            raise InvalidInput(f"model {name[:80]!r} is not a language model; see: edged models list")
        return self._controller.language.require(name)

    def of(self, name: str, version: str = "") -> PlannedLanguageModel | None:
        """Return a language model; None if no language model has this name."""
        return self._controller.language.find(name, version) if name else None

    async def answer(
        self, planned: PlannedLanguageModel, request: ChatRequest, peer: str
    ) -> AsyncGenerator[Text, None]:
        """Yield the parts of an answer's text; the last part says why the answer ends. If several clients wait, the
        model answers one request of each client in turn. `identity.namespace` distinguishes clients."""
        texts = planned.generate(generation(request, planned), request.stop, identity.namespace(peer))
        async with aclosing(texts):
            async for text in texts:
                yield text

    def models(self) -> list[LanguageModelInfo]:
        """Report all language models, sorted by name."""
        return [report.language_model(planned) for _, planned in sorted(self._controller.language.models.items())]

    async def language_models(self, request: pb.LanguageModelsRequest, context: Context) -> pb.LanguageModelsResponse:
        return pb.LanguageModelsResponse(models=[to_message(each, pb.LanguageModel) for each in self.models()])

    async def chat(self, request: pb.ChatRequest, context: Context) -> AsyncGenerator[pb.ChatReply, None]:
        planned = self.find(request.model)
        tokens = 0
        async with aclosing(self.answer(planned, _request_of(request), context.peer)) as texts:
            async for text in texts:
                tokens += text.tokens
                yield pb.ChatReply(
                    text=text.text,
                    finish_reason=text.reason,
                    model=planned.entry.name,
                    prompt_tokens=text.prompt_tokens if text.reason else 0,
                    cached_tokens=text.cached_tokens if text.reason else 0,
                    tokens=tokens,
                )


def _request_of(request: pb.ChatRequest) -> ChatRequest:
    guidance = request.WhichOneof("guidance")
    return ChatRequest(
        tuple(ChatMessage(each.role, each.content, tuple(each.pictures)) for each in request.messages),
        request.prompt,
        request.max_tokens,
        request.temperature if request.HasField("temperature") else None,
        request.top_p if request.HasField("top_p") else None,
        request.seed if request.HasField("seed") else None,
        tuple(request.stop),
        "json_schema" if guidance == "json_schema" else "regex" if guidance == "regex" else "",
        request.json_schema or request.regex,
    )
