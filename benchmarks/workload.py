"""The work of both sides of a comparison: one tiny model in a folder, and the same token ids of the testbed.

The folder holds `model` (the testbed's architecture, trained for a moment, so that responses end), `pairs.json` and
`prompts.json`. It is made once per content of this file and of the testbed's settings.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tasks.params.pages import Address, read_settings, settings_digest

ROOT = Path(__file__).resolve().parent.parent
SCALE = ROOT / "params" / "scales" / "testbed"
DATA, TOKENIZER, BACKBONE = (
    Address(SCALE / entry) for entry in ("data.yaml:dialogue", "tokenizers.yaml:dialogue", "backbones.yaml:phi3-mini")
)
ROWS = {"sft": 1600, "preference_train": 384, "prompts": 256, "tasks": 16}
STEPS = 120


def workload(out: Path, *, rows: dict[str, int] | None = None, steps: int = STEPS, **architecture: Any) -> Path:
    """The folder, made if it is not there; `architecture` changes fields of the model's configuration."""
    sizes = {**ROWS, **(rows or {})}
    digest = hashlib.sha256(Path(__file__).read_bytes() + json.dumps([sizes, steps, architecture]).encode())
    for name in (DATA, TOKENIZER, BACKBONE):
        digest.update(settings_digest(name).encode())
    folder = out / f"workload-{digest.hexdigest()[:12]}"
    if not folder.is_dir():
        out.mkdir(parents=True, exist_ok=True)
        print(f"making {folder} (about a minute)", flush=True)
        with tempfile.TemporaryDirectory(dir=out) as made:
            _make(Path(made), sizes, steps, architecture)
            shutil.move(Path(made) / "workload", folder)
    return folder


def _make(root: Path, sizes: dict[str, int], steps: int, architecture: dict[str, Any]) -> None:
    import torch
    import yaml
    from transformers import AutoConfig, AutoModelForCausalLM

    from tasks.running.artifacts import read_jsonl
    from tasks.running.loading import load_encoder

    spec = read_settings(DATA)
    spec["rows"] = {name: sizes.get(name, min(count, 8)) for name, count in spec["rows"].items()}
    (root / "data.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    data, tokenizer, out = root / "data", root / "tokenizer", root / "workload"
    for stage, arguments in {
        "prepare": ["--spec", root / "data.yaml", "--out", data],
        "tokenizer": ["--spec", TOKENIZER, "--data", data / "result", "--out", tokenizer],
    }.items():
        command = [sys.executable, "-m", f"tasks.{stage}", *map(str, arguments)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    encoder = load_encoder(data / "result", tokenizer / "result")
    backbone = read_settings(BACKBONE)
    config = AutoConfig.for_model(
        **backbone["architecture"] | architecture,
        vocab_size=len(encoder.tokenizer),
        pad_token_id=encoder.pad_id,
        bos_token_id=encoder.tokenizer.bos_token_id,
        eos_token_id=encoder.eos_id,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    sft = [encoder.sequence(row, row["response"]) for row in read_jsonl(data / "result" / "sft.jsonl")]
    if steps:
        _train(model, sft, encoder, steps)
    model.save_pretrained(out / "model", safe_serialization=True)
    encoder.tokenizer.save_pretrained(out / "model")
    pairs = []
    for row in read_jsonl(data / "result" / "preference.train.jsonl"):
        chosen, rejected = (encoder.sequence(row, row[side]) for side in ("chosen", "rejected"))
        pairs.append({"prompt": chosen.prompt, "chosen": chosen.response, "rejected": rejected.response})
    prompts = [encoder.prompt(row) for row in read_jsonl(data / "result" / "prompts.jsonl")]
    facts = {"pad_id": encoder.pad_id, "eos_id": encoder.eos_id}
    for name, content in {"pairs": pairs, "prompts": prompts, "facts": facts}.items():
        (out / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def _train(model: Any, rows: list[Any], encoder: Any, steps: int) -> None:
    from rlhf_core.data.batching import LengthBucketedBatches
    from rlhf_core.models.policy import Policy
    from rlhf_core.supervised.config import TrainingConfig
    from rlhf_core.supervised.objectives import sft_loss
    from rlhf_core.supervised.training import train

    policy = Policy(model, pad_id=encoder.pad_id, eos_id=encoder.eos_id)
    config = TrainingConfig(epochs=1, batch=16, microbatch=16, learning_rate=5e-3)
    batches = LengthBucketedBatches([len(row) for row in rows], seed=0, rows_per_batch=config.batch)
    train(
        model,
        lambda indices: (*sft_loss(policy, [rows[i] for i in indices]), {}),
        batches,
        steps,
        config,
        lambda step, metrics: None,
        weight=lambda indices: float(sum(len(rows[i].response) for i in indices)),
    )


def read(folder: str, name: str) -> Any:
    """`pairs` (prompt, chosen and rejected ids), `prompts` (ids) or `facts` (pad_id, eos_id)."""
    return json.loads((Path(folder) / f"{name}.json").read_text(encoding="utf-8"))


def load_model(folder: str) -> Any:
    """The language model, float32: both sides load it by this."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=torch.float32)


def encoded_pairs(folder: str) -> tuple[list[Any], list[Any]]:
    """Chosen and rejected sequences as this project encodes them."""
    from rlhf_core.data.encoding import EncodedSequence

    pairs = read(folder, "pairs")
    chosen, rejected = (
        [EncodedSequence(pair["prompt"], pair[side]) for pair in pairs] for side in ("chosen", "rejected")
    )
    return chosen, rejected


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
