"""The work of both sides of a comparison: one model in a folder, and the same token ids.

The folder holds `model`, `pairs.json`, `prompts.json` and `facts.json`. It is made once per content of this file and of
the testbed's settings. Without a shape the model is the testbed's, trained for a moment so that responses end, and
reads dialogue; with one it is random and reads random tokens, and `answers.json` has the answers to each prompt.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.alternating import ROOT
from tasks.params.pages import Address, read_settings, settings_digest

SCALE = ROOT / "params" / "scales" / "testbed"
DATA, TOKENIZER, BACKBONE = (
    Address(SCALE / entry) for entry in ("data.yaml:dialogue", "tokenizers.yaml:dialogue", "backbones.yaml:phi3-mini")
)
ROWS = {"sft": 1600, "preference_train": 384, "prompts": 256, "tasks": 16}
STEPS = 120


@dataclass(frozen=True)
class Shape:
    """Sizes of work with random tokens.

    Attributes:
        prompt, answer: fewest and most tokens; lengths are spread evenly between them.
        prompts, answers: how many there are, and how many answers each prompt has.
    """

    prompt: tuple[int, int]
    answer: tuple[int, int]
    prompts: int
    answers: int

    def content(self, words: range, eos_id: int) -> dict[str, Any]:
        """Returns random prompts, the answers to each, which end with EOS, and pairs of the first two answers."""
        rng = random.Random("benchmark")
        prompts, answers = list[list[int]](), list[list[list[int]]]()
        for _ in range(self.prompts):
            prompts.append(rng.choices(words, k=rng.randint(*self.prompt)))
            lengths = [rng.randint(*self.answer) for _ in range(self.answers)]
            answers.append([[*rng.choices(words, k=length - 1), eos_id] for length in lengths])
        pairs = [
            {"prompt": prompt, "chosen": own[0], "rejected": own[1]}
            for prompt, own in zip(prompts, answers, strict=True)
        ]
        return {"prompts": prompts, "answers": answers, "pairs": pairs}


#: Wide enough that products take more of the time than attention, as in models that people train.
FOUR_LAYERS = {
    "num_hidden_layers": 4, "hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 3,
    "num_key_value_heads": 3, "max_position_embeddings": 1024,
}  # fmt: skip
PAIRS = Shape((100, 300), (100, 300), prompts=24, answers=2)
GROUPS = Shape((448, 576), (120, 256), prompts=4, answers=8)


def workload(out: Path, shape: Shape | None = None, **architecture: int) -> Path:
    """Returns the folder, made if it is not there; `architecture` changes fields of the model's configuration."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + repr([shape, architecture]).encode())
    for name in (DATA, TOKENIZER, BACKBONE):
        digest.update(settings_digest(name).encode())
    folder = out / f"workload-{digest.hexdigest()[:12]}"
    if not folder.is_dir():
        out.mkdir(parents=True, exist_ok=True)
        print(f"making {folder} (about a minute)", flush=True)
        with tempfile.TemporaryDirectory(dir=out) as made:
            _make(Path(made), shape, architecture)
            shutil.move(Path(made) / "workload", folder)
    return folder


def _make(root: Path, shape: Shape | None, architecture: dict[str, int]) -> None:
    import torch
    import yaml
    from transformers import AutoConfig, AutoModelForCausalLM

    from tasks.running.artifacts import read_jsonl
    from tasks.running.loading import load_encoder

    spec = read_settings(DATA)
    spec["rows"] = {name: ROWS.get(name, min(count, 8)) for name, count in spec["rows"].items()}
    (root / "data.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    data, tokenizer, out = root / "data", root / "tokenizer", root / "workload"
    for stage, arguments in {
        "prepare": ["--spec", root / "data.yaml", "--out", data],
        "tokenizer": ["--spec", TOKENIZER, "--data", data / "result", "--out", tokenizer],
    }.items():
        command = [sys.executable, "-m", f"tasks.{stage}", *map(str, arguments)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    encoder = load_encoder(data / "result", tokenizer / "result")
    config = AutoConfig.for_model(
        **read_settings(BACKBONE)["architecture"] | (FOUR_LAYERS if shape else {}) | architecture,
        vocab_size=len(encoder.tokenizer),
        pad_token_id=encoder.pad_id,
        bos_token_id=encoder.tokenizer.bos_token_id,
        eos_token_id=encoder.eos_id,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    rows = {name: read_jsonl(data / "result" / f"{name}.jsonl") for name in ("sft", "preference.train", "prompts")}
    if shape:
        words = range(1 + max(encoder.tokenizer.all_special_ids), len(encoder.tokenizer))
        content = shape.content(words, encoder.eos_id)
    else:
        _train(model, [encoder.sequence(row, row["response"]) for row in rows["sft"]], encoder)
        content = {"pairs": [], "prompts": [encoder.prompt(row) for row in rows["prompts"]]}
        for row in rows["preference.train"]:
            chosen, rejected = (encoder.sequence(row, row[side]) for side in ("chosen", "rejected"))
            content["pairs"].append({"prompt": chosen.prompt, "chosen": chosen.response, "rejected": rejected.response})
    model.save_pretrained(out / "model", safe_serialization=True)
    encoder.tokenizer.save_pretrained(out / "model")
    write(out, content | {"facts": {"pad_id": encoder.pad_id, "eos_id": encoder.eos_id}})


def _train(model: Any, rows: list[Any], encoder: Any) -> None:
    from benchmarks.training import train_on
    from rlhf_core.models.policy import Policy
    from tasks.running.supervised import Likelihood

    policy = Policy(model, pad_id=encoder.pad_id, eos_id=encoder.eos_id)
    train_on(model, Likelihood(policy, rows), batch=16, rate=5e-3, steps=STEPS)


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes what `read` returns, by name."""
    for name, value in content.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")


def read(folder: str, name: str) -> Any:
    """Returns `pairs` (prompt, chosen and rejected ids), `prompts` and `answers` (ids), or `facts` (pad_id, eos_id)."""
    return json.loads((Path(folder) / f"{name}.json").read_text(encoding="utf-8"))


def load_model(folder: str) -> Any:
    """Returns the language model, float32: both sides load it by this."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=torch.float32)


def tokens_of_pairs(folder: str) -> int:
    """Returns the tokens of all pairs, each prompt counted once."""
    return sum(len(part) for pair in read(folder, "pairs") for part in pair.values())


def peer_options(**more: Any) -> dict[str, Any]:
    """Arguments of every peer's trainer: float32, no checkpoints of gradients or weights, no reports."""
    return {
        "output_dir": tempfile.mkdtemp(prefix="peer-"),
        "bf16": False,
        "fp16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "constant",
        **more,
    }
