"""Language models on ONNX Runtime GenAI. A model is a folder with genai_config.json.

On a CPU, no request can join a batch of the library's engine later: it would wait until the whole batch has ended. So
edged forms the batches. It moves running and waiting requests into a new batch if this saves time. The move also costs
time, because the new batch must read the tokens of the running requests again. A request with a seed, guidance or a
long prompt cannot be in a batch, so it has its own generator. So has every request to a model that takes pictures. All
batches and generators take turns, a token at a time.

The last few generators of ended requests are kept. A later request with the same sampling and the same beginning, such
as a system prompt, continues with a kept generator.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# The library reads this variable when it is loaded. Without the variable, it writes into the home folder.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime_genai as og

from edged.backends.contract import one_line
from edged.backends.language.contract import Generation, Opening, Step
from edged.backends.language.ort_groups import Alone, Batch, Group, Kept, Request, set_sampling
from edged.errors import EngineUnusable, InvalidInput

_LEAST_SHARE = 0.5  # a kept generator is used for a new prompt only if it has read at least this share of the prompt
_KEPT = 2  # at most this many generators of ended requests are kept
_PROBE = json.dumps([{"role": "user", "content": "x"}])
# The text that stands for a picture in a prompt, by the model's type. {} is the picture's number.
_MARKS = {
    "phi3v": "<|image_{}|>\n",
    "phi4mm": "<|image_{}|>",
    "gemma3": "<start_of_image>",
    "gemma4": "<|image|>",
    "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen3_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "fara": "<|vision_start|><|image_pad|><|vision_end|>",
    "lfm2_vl": "<image>",
    "mistral3": "[IMG]",
}


class _Runtime:
    def open(self, how: Opening) -> OrtLanguageModel:
        try:
            return OrtLanguageModel(how)
        except (RuntimeError, ValueError, OSError) as error:
            raise EngineUnusable(f"ONNX Runtime GenAI refuses the model: {one_line(error)}") from error


RUNTIME = _Runtime()


class OrtLanguageModel:
    """A model of ONNX Runtime GenAI."""

    def __init__(self, how: Opening) -> None:
        folder = Path(how.file).parent
        options = {"intra_op_num_threads": how.threads, "inter_op_num_threads": 1}
        overlay = {"model": {"decoder": {"session_options": options}}}
        self._model, self.fallback = _opened(str(folder), json.dumps(overlay))
        described = json.loads(Path(how.file).read_bytes())["model"]
        self.context = min(how.context, int(described.get("context_length", how.context)))
        self._kind = str(self._model.type)
        self._tokenizer = og.Tokenizer(self._model)
        self._ends = tuple(int(each) for each in self._tokenizer.eos_token_ids)
        self._processor = self._model.create_multimodal_processor() if "vision" in described else None
        self.has_template = self._has_template()
        self.has_tools = self.has_template and any("tools" in text for text in _templates(folder))
        self._most = how.most
        self._waiting: list[Request] = []
        self._groups: list[Group] = []
        self._kept: list[Kept] = []

    def _has_template(self) -> bool:
        try:
            return bool(self._tokenizer.apply_chat_template(_PROBE))
        except RuntimeError:
            return False

    # -- requests ----------------------------------------------------------------------------------------------------

    def begin(self, number: int, wanted: Generation) -> int:
        prompt = self._formatted(wanted) if wanted.messages else wanted.prompt
        inputs = None
        try:
            if self._processor is not None:
                images = og.Images.open_bytes(*map(_whole, wanted.pictures)) if wanted.pictures else None
                inputs = self._processor(prompt, images=images)
                ids: list[int] = inputs["input_ids"].as_numpy().ravel().tolist() if _has_ids(inputs) else []
            else:
                ids = [int(each) for each in self._tokenizer.encode(prompt)]
        except RuntimeError as error:
            raise InvalidInput(f"ONNX Runtime GenAI refuses the prompt: {one_line(error)}") from error
        if not ids and inputs is None:
            raise InvalidInput("the prompt is empty; send at least one character")
        if len(ids) >= self.context:
            raise InvalidInput(
                f"the prompt has {len(ids)} tokens, but prompt and answer together can have {self.context}; shorten the"
                " prompt, or raise the model's setting language.context if the model allows more"
            )
        request = Request(number, ids, wanted, self._tokenizer.create_stream(), inputs)
        if wanted.sampling.guidance:  # its generator is created now, so that `begin` refuses an invalid grammar
            self._groups.append(self._alone(request))
        else:
            self._waiting.append(request)
        return len(ids)

    def _formatted(self, wanted: Generation) -> str:
        messages, count = json.loads(wanted.messages), 0
        for message in messages:
            if isinstance(message.get("content"), list):
                text = ""
                for part in message["content"]:
                    count += part["type"] == "image"
                    text += self._mark(count) if part["type"] == "image" else part["text"]
                message["content"] = text
        try:
            tools = {"tools": wanted.tools} if wanted.tools else {}
            return str(self._tokenizer.apply_chat_template(json.dumps(messages), **tools))
        except RuntimeError as error:
            raise InvalidInput(f"the model's chat template refuses the messages: {one_line(error)}") from error

    def _mark(self, number: int) -> str:
        mark = _MARKS.get(self._kind)
        if mark is None:
            raise InvalidInput(f"pictures are not supported for models of type {self._kind!r}; send text only")
        return mark.format(number)

    def cancel(self, number: int) -> None:
        self._waiting = [each for each in self._waiting if each.number != number]
        for group in self._groups:
            for request in group.requests:
                if request.number == number:
                    group.cancel(request)
                    group.requests.remove(request)
                    break
        self._groups = [group for group in self._groups if group.requests]

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting or self._groups)

    # -- work --------------------------------------------------------------------------------------------------------

    def step(self) -> list[Step]:
        steps: list[Step] = []
        while self._waiting:
            steps += self._start()
        for group in self._groups:
            try:
                steps += group.step()
            except RuntimeError as error:
                steps += [Step(each.number, error=one_line(error)) for each in group.requests]
        ended = {step.number for step in steps if step.reason or step.error}
        if ended:
            for group in self._groups:
                self._keep(group, ended)
                group.requests = [each for each in group.requests if each.number not in ended]
            self._groups = [group for group in self._groups if group.requests]
        return steps

    def _start(self) -> list[Step]:
        """Start one or more of the waiting requests. If at least two requests can share a batch, running requests
        included, start them in a new batch. Otherwise start one waiting request with its own generator. Return a step
        with an error for each request that cannot be started."""
        joining = [each for each in self._waiting if each.may_share][: self._most]
        movable = [
            each
            for group in self._groups
            if isinstance(group, Batch) or (isinstance(group, Alone) and group.is_reading_done)
            for each in group.requests
            if each.may_share
        ]
        # A batch moves as a whole, or not at all.
        free = self._most - len(joining)
        moved = movable if joining and len(movable) <= free and all(map(Request.is_worth_moving, movable)) else []
        together = [*moved, *joining]
        try:
            if len(together) > 1:
                batch = Batch(self._model, together, self._ends, self.context)
                for group in self._groups:
                    for each in [each for each in group.requests if each in moved]:
                        group.cancel(each)
                        group.requests.remove(each)
                self._groups = [group for group in self._groups if group.requests]
                self._groups.append(batch)
                self._waiting = [each for each in self._waiting if each not in joining]
                return []
            request = self._waiting.pop(0)
            together = [request]
            self._groups.append(self._alone(request))
        except (RuntimeError, ValueError, TypeError, InvalidInput) as error:
            self._waiting = [each for each in self._waiting if each not in together]
            return [Step(each.number, error=one_line(error)) for each in together if each not in moved]
        return []

    def _alone(self, request: Request) -> Alone:
        if request.inputs is None and request.wanted.sampling.seed is None:
            found = max(self._kept, key=lambda kept: kept.shared(request), default=None)
            if found is not None and found.shared(request) >= _LEAST_SHARE * len(request.ids):
                self._kept.remove(found)
                try:
                    return Alone(found.generator, request, self._ends, found.rewound(request))
                except RuntimeError:  # not every model's generator can be rewound
                    pass
        parameters = og.GeneratorParams(self._model)
        try:
            set_sampling(parameters, request.wanted.sampling, self.context)
            return Alone(og.Generator(self._model, parameters), request, self._ends)
        except (RuntimeError, ValueError) as error:
            if request.wanted.sampling.guidance:
                raise InvalidInput(
                    f"the {request.wanted.sampling.guidance} of the request cannot be used: {one_line(error)}"
                ) from None
            raise

    def _keep(self, group: Group, ended: set[int]) -> None:
        """Keep the generator of an ended request, and drop the oldest kept generators if there are too many. Memory is
        planned for `_most` requests, so running requests and kept generators together may be at most `_most`. One
        generator may be kept in any case."""
        if not isinstance(group, Alone) or not any(each.number in ended for each in group.requests):
            return
        (request,) = group.requests
        if request.inputs is None and request.wanted.sampling.seed is None and group.is_reading_done:
            self._kept.append(Kept(group.generator, [*request.ids, *request.made[:-1]], request.wanted.sampling))
        running = sum(len(each.requests) for each in self._groups)
        del self._kept[: max(0, len(self._kept) - min(_KEPT, max(1, self._most - running)))]


def _opened(folder: str, overlay: str) -> tuple[Any, str]:
    """Open a model on the devices of its configuration, or on the CPU if that fails. Return the model, and the error of
    the first attempt (empty if it succeeded)."""
    config = og.Config(folder)
    config.overlay(overlay)
    try:
        return og.Model(config), ""
    except RuntimeError as error:
        config = og.Config(folder)
        config.clear_providers()
        config.overlay(overlay)
        return og.Model(config), one_line(error)


def _templates(folder: Path) -> list[str]:
    found = []
    for name in ("tokenizer_config.json", "chat_template.jinja", "chat_template.json"):
        try:
            found.append((folder / name).read_text("utf-8", "replace"))
        except OSError:
            continue
    return found


def _whole(picture: bytes) -> bytes:
    """Decode a picture and encode it again as a complete JPEG, because a damaged file would crash the runtime's decoder
    and the process. Raises InvalidImage if the picture cannot be decoded."""
    from edged.vision import draw, image  # OpenCV, which few models need

    return draw.encode_jpeg(image.decode(picture), quality=95)


def _has_ids(inputs: Any) -> bool:
    return "input_ids" in inputs.keys()  # noqa: SIM118 - it is not a mapping
