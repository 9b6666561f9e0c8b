"""Stored models: weights, heads, tokenizers and tensors, as later stages load them.

Weights and values of a configuration that changed load as another model; what finds them is DVC's digest of the result.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import CRITICAL
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.utils import logging

from rlhf_core.data.tokenizers import train_byte_level_bpe
from rlhf_core.models.loading import load_language_model, load_tokenizer, save_model
from rlhf_core.models.reward_model import ScalarModel
from tasks.scoring.entropies import load_entropies
from tests.fuzz.damage import Area, damage_file, damaged_bytes, damaged_json, damaged_tree
from tests.rlhf_core.tiny_models import tiny_policy, tiny_scalar_model

POLICY, REWARD_MODEL, TOKENIZER, ENTROPIES = "policy", "reward_model", "tokenizer", "entropies"


def _damaged_header(rng: random.Random, content: bytes) -> bytes:
    """Returns safetensors with damage to the header, its length or the whole file."""
    size = 8 + int.from_bytes(content[:8], "little")
    how = rng.random()
    if how < 0.2:
        length = rng.choice([0, 1, size, len(content), 2**31, 2**63, 2**64 - 1])
        return length.to_bytes(8, "little") + content[8:]
    if how < 0.4:
        return damaged_bytes(rng, content)
    header = damaged_json(rng, content[8:size])
    return len(header).to_bytes(8, "little") + header + content[size:]


def _loads(rng: random.Random) -> tuple[str, Callable[[Path], object]]:
    """Returns a file and what loads it from its folder."""
    loads: tuple[tuple[str, Callable[[Path], object]], ...] = (
        (f"{POLICY}/model.safetensors", load_language_model),
        (f"{POLICY}/config.json", load_language_model),
        (f"{POLICY}/generation_config.json", load_language_model),
        (f"{REWARD_MODEL}/config.json", ScalarModel.load),
        (f"{REWARD_MODEL}/model.safetensors", ScalarModel.load),
        (f"{REWARD_MODEL}/heads.safetensors", ScalarModel.load),
        (f"{REWARD_MODEL}/reward_model.json", ScalarModel.load),
        (f"{TOKENIZER}/tokenizer.json", load_tokenizer),
        (f"{TOKENIZER}/tokenizer_config.json", load_tokenizer),
        (f"{ENTROPIES}/entropies.safetensors", lambda folder: load_entropies(folder, "train")),
    )
    return rng.choice(loads)


@contextmanager
def models(folder: Path) -> Iterator[Area]:
    """Yields a case: a damaged model loads, or is refused in words with its folder."""
    made = folder / "made"
    save_model(tiny_policy().model, made / POLICY)
    tiny_scalar_model().save(made / REWARD_MODEL, {"loss": "bradley_terry"})
    train_byte_level_bpe(["the cat sat on the mat"] * 9, 300).save_pretrained(made / TOKENIZER)
    (made / ENTROPIES).mkdir()
    lengths = torch.tensor([2, 1])
    save_file({"train.values": torch.rand(3), "train.lengths": lengths}, made / ENTROPIES / "entropies.safetensors")
    logging.set_verbosity(CRITICAL)

    def case(rng: random.Random) -> None:
        name, load = _loads(rng)
        root = Path(shutil.copytree((made / name).parent, folder / "case"))
        file = root / Path(name).name
        done = damage_file(rng, file, _damaged_header if file.suffix == ".safetensors" else damaged_json)
        with damaged_tree(root, done):
            load(root)

    yield case
