"""Stage `entropies`: the SFT model's predictive entropies on all preference responses, computed once.

Four entropy cutoffs cost this one pass. Entropies are stored flat, in the order of the data's rows, chosen then
rejected. A cutoff may be stated as a quantile of the training responses' entropies (testbed scale); what it comes to
in nats is resolved here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from safetensors.torch import save_file

from tasks.params.backbone import EntropySpec
from tasks.running.artifacts import read_jsonl, write_json
from tasks.running.loading import encode, load_encoder, load_policy
from tasks.running.stage import PageEntry, stage
from tasks.scoring.segmenting import response_entropies

VERSION = 3

SPLITS = ("train", "validation", "ood")


def resolve_cutoffs(spec: EntropySpec, entropies: torch.Tensor) -> dict[str, float]:
    """Cutoffs in nats by name; quantiles are taken of `entropies`."""
    known = entropies[:1_000_000]
    return {
        name: float(torch.quantile(known, float(rule.quantile or 0)) if rule.nats is None else rule.nats)
        for name, rule in spec.cutoffs.items()
    }


def levels(train: torch.Tensor) -> dict[str, float]:
    """Returns the mean and some quantiles of the training responses' entropies."""
    quantiles = {f"entropy_q{q}": float(torch.quantile(train[:1_000_000], q / 100)) for q in (10, 25, 50, 75, 90)}
    return {"entropy_mean": float(train.mean()), **quantiles}


def measure(spec: Annotated[EntropySpec, PageEntry("cutoffs (YAML)")], sft: Path, data: Path, result: Path) -> None:
    """Writes entropies of every preference split and the cutoffs in nats."""
    encoder = load_encoder(data, sft / "model")
    policy = load_policy(sft / "model", encoder)
    stored: dict[str, torch.Tensor] = {}
    for split in SPLITS:
        file = data / f"preference.{split}.jsonl"
        pairs = read_jsonl(file)
        sequences = [s for side in ("chosen", "rejected") for s in encode(encoder, pairs, side, file)]
        stored |= _flat(split, response_entropies(policy, sequences))
    examples = encode(encoder, read_jsonl(data / "examples.jsonl"), "response", data / "examples.jsonl")
    stored |= _flat("examples", response_entropies(policy, examples))
    save_file(stored, result / "entropies.safetensors")
    train = stored["train.values"]
    write_json(result / "cutoffs.json", resolve_cutoffs(spec, train))
    write_json(result / "metrics.json", levels(train))


def _flat(split: str, values: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{split}.values": torch.cat(values), f"{split}.lengths": torch.tensor([len(v) for v in values])}


main = stage(measure)
