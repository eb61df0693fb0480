"""Adds token ids to the setting `prompts`, from the tokenizer next to a model. A child reads the tokenizer's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edged.config.child_limits import Limits
from edged.engines.child import run
from edged.errors import ConfigError
from edged.ipc import job_messages as jobs
from edged.vision import prompts
from edged.vision.prompts import PROMPTS, Prompt

# The files of one tokenizer, in order of preference; see `edged.jobs.tokenizer`.
_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.txt",))
_LIMITS = Limits(seconds=120.0, memory_mb=2048)


def tokenizer_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of the tokenizer in a folder. If the folder has no tokenizer, look in its parent, where models
    of the Hugging Face Hub have it. Empty if neither folder has a tokenizer."""
    for place in (folder, folder.parent):
        for names in _FILES:
            found = tuple((place / name).absolute() for name in names)
            if all(map(Path.is_file, found)):
                return found
    return ()


async def with_token_ids(settings: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the settings. Prompts without token ids get them from the tokenizer in `folder` or its parent.

    Raises ConfigError if a prompt is malformed or cannot be encoded, or if no tokenizer of CLIP or BERT is found.
    """
    given = prompts.read(settings)
    lacking = tuple(prompt.text for prompt in given if not prompt.tokens)
    if not lacking:
        return dict(settings)
    files = tokenizer_files(folder)
    if not files:
        raise ConfigError(
            f"setting {PROMPTS!r} needs a tokenizer, but {folder} has none; put the model's tokenizer.json there, or"
            ' give token ids: prompts = "a cat [49406 320 2368 49407]"'
        )
    answer = await run(jobs.Tokenize(tuple(map(str, files)), lacking), jobs.Tokenized, _LIMITS)
    ids = dict(zip(lacking, answer.ids, strict=True))
    found = (prompt if prompt.tokens else Prompt(prompt.text, ids[prompt.text]) for prompt in given)
    return {**settings, PROMPTS: prompts.write(found)}
