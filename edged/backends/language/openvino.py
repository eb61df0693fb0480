"""Language models on OpenVINO GenAI: folders with openvino_model.xml, and GGUF files. The runtime itself combines
requests into a batch at each step. It also caches the beginnings of prompts, for later requests with the same
beginning."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

# As in `backends/openvino.py`, this entry prevents telemetry: OpenVINO cannot import its telemetry package.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None is how an import is blocked

import numpy as np
import openvino as ov_core
import openvino_genai as ov

from edged.backends.contract import one_line
from edged.backends.language.contract import Generation, Opening, Prompt, Reason, Step
from edged.errors import EngineUnusable, InvalidInput

_REASONS: dict[str, Reason] = {"STOP": "stop", "LENGTH": "length"}
_BLOCK = 32  # tokens, on a CPU


class _Runtime:
    def open(self, how: Opening) -> OpenvinoLanguageModel:
        try:
            return OpenvinoLanguageModel(how)
        except (RuntimeError, ValueError, OSError) as error:
            raise EngineUnusable(f"OpenVINO GenAI refuses the model: {one_line(error)}") from error


RUNTIME = _Runtime()


class _Request:
    """A request with its handle in the pipeline, its tokens, and the text that was decoded since the last step."""

    def __init__(self, number: int, ids: list[int], wanted: Generation, tokenizer: Any) -> None:
        self.number, self.ids, self.wanted, self.prompt = number, ids, wanted, Prompt(len(ids))
        self.made: list[int] = []
        self.handle: Any = None
        self._text = ""
        self._streamer = ov.TextStreamer(tokenizer, self._take)

    def _take(self, text: str) -> ov.StreamingStatus:
        self._text += text
        return ov.StreamingStatus.RUNNING

    def decode(self, ids: list[int], is_last: bool) -> str:
        for each in ids:
            self._streamer.write(each)
        if is_last:
            self._streamer.end()
        text, self._text = self._text, ""
        return text


class OpenvinoLanguageModel:
    """A model of OpenVINO GenAI."""

    def __init__(self, how: Opening) -> None:
        scheduler = ov.SchedulerConfig()
        scheduler.max_num_seqs = how.most
        scheduler.enable_prefix_caching = True
        # The blocks of `most` requests, and those of one more request for cached beginnings of prompts.
        scheduler.num_kv_blocks = -(-how.context // _BLOCK) * (how.most + 1)
        path = how.file if how.file.endswith(".gguf") else how.file.rpartition("/")[0]
        properties: dict[str, int | str] = {"INFERENCE_NUM_THREADS": how.threads}
        if min(how.threads, len(os.sched_getaffinity(0))) == 1:
            # On one thread, OpenVINO with AMX chooses bfloat16 and divides by zero (openvinotoolkit/openvino#33300).
            properties["INFERENCE_PRECISION_HINT"] = "f32"
        self._open: Callable[[], Any] = lambda: ov.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
        self._pipeline = self._open()
        self._tokenizer = self._pipeline.get_tokenizer()
        self._ends = {self._tokenizer.get_eos_token_id(), *self._pipeline.get_config().stop_token_ids}
        template = str(self._tokenizer.get_original_chat_template())
        self.context = how.context
        self.has_template = bool(template)
        self.has_tools = "tools" in template
        self.fallback = ""
        self._requests: dict[int, _Request] = {}

    def begin(self, number: int, wanted: Generation) -> int:
        if wanted.pictures:
            raise InvalidInput("the model takes no pictures; use a vision-language model")
        prompt = self._formatted(wanted) if wanted.messages else wanted.prompt
        encoded = self._tokenizer.encode(prompt, add_special_tokens=not wanted.messages).input_ids
        ids = [int(each) for each in encoded.data.ravel()]
        if not ids:
            raise InvalidInput("the prompt is empty; send at least one character")
        if len(ids) >= self.context:
            raise InvalidInput(
                f"the prompt has {len(ids)} tokens, but prompt and answer together can have {self.context}; shorten the"
                " prompt, or raise the model's setting language.context if the model allows more"
            )
        request = _Request(number, ids, wanted, self._tokenizer)
        try:
            self._add(request)
        except (RuntimeError, ValueError, TypeError) as error:
            raise InvalidInput(f"OpenVINO GenAI refuses the request: {one_line(error)}") from error
        self._requests[number] = request
        return len(ids)

    def _add(self, request: _Request) -> None:
        """Add a request to the pipeline, with the tokens that were generated for it so far."""
        ids = np.array([[*request.ids, *request.made]], np.int64)
        config = self._config(request.wanted, self.context - len(request.ids), len(request.made))
        request.handle = self._pipeline.add_request(request.number, ov_core.Tensor(ids), config)

    def _formatted(self, wanted: Generation) -> str:
        messages = json.loads(wanted.messages)
        for message in messages:
            if isinstance(message.get("content"), list):
                message["content"] = "".join(part["text"] for part in message["content"])
        tools = {"tools": json.loads(wanted.tools)} if wanted.tools else {}
        try:
            return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, **tools))
        except (RuntimeError, ValueError) as error:
            raise InvalidInput(f"the model's chat template refuses the messages: {one_line(error)}") from error

    def _config(self, wanted: Generation, room: int, made: int) -> Any:
        sampling = wanted.sampling
        config = ov.GenerationConfig()
        config.eos_token_id, config.stop_token_ids = self._tokenizer.get_eos_token_id(), self._ends
        config.max_new_tokens = min(wanted.most_tokens, room) - made
        config.apply_chat_template = False
        config.do_sample = sampling.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p, config.top_k = sampling.temperature, sampling.top_p, 0
        if sampling.seed is not None:
            config.rng_seed = sampling.seed
        if sampling.guidance == "json_schema":
            config.structured_output_config = ov.StructuredOutputConfig(json_schema=sampling.grammar)
        elif sampling.guidance == "regex":
            config.structured_output_config = ov.StructuredOutputConfig(regex=sampling.grammar)
        config.validate()
        return config

    def cancel(self, number: int) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            request.handle.cancel()

    @property
    def is_busy(self) -> bool:
        return bool(self._requests)

    def step(self) -> list[Step]:
        if self._pipeline.has_non_finished_requests():
            try:
                self._pipeline.step()
            except RuntimeError as error:
                return self._without_suspects(error)
        steps = []
        for number, request in list(self._requests.items()):
            if request.handle.can_read():
                (output,) = request.handle.read().values()
                reason = _REASONS.get(output.finish_reason.name, "")
                ids = [each for each in output.generated_ids if each not in self._ends]
                text = request.decode(ids, bool(reason))
                prompt = None if request.made else request.prompt
                request.made += output.generated_ids
                steps.append(Step(number, text, len(output.generated_ids), reason, prompt=prompt))
                if reason:
                    del self._requests[number]
            elif request.handle.get_status().name not in ("RUNNING", "FINISHED"):
                del self._requests[number]
                steps.append(Step(number, error=f"the runtime ended the request: {request.handle.get_status().name}"))
        return steps

    def _without_suspects(self, error: RuntimeError) -> list[Step]:
        """Open the pipeline again, because it no longer works after an error. End the requests that probably caused the
        error: those with a grammar and without a generated token. All other requests continue. Raises EngineUnusable if
        there is no such request."""
        suspects = [each for each in self._requests.values() if each.wanted.sampling.guidance and not each.made]
        if not suspects:
            raise EngineUnusable(f"OpenVINO GenAI failed: {one_line(error)}") from error
        self._pipeline = self._open()
        for each in suspects:
            del self._requests[each.number]
        for each in self._requests.values():
            self._add(each)
        return [
            Step(each.number, error=f"the answer's JSON schema or regular expression cannot be used: {one_line(error)}")
            for each in suspects
        ]
