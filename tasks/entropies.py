"""Stage `entropies`: the SFT model's predictive entropies on all preference responses, computed once.

Four entropy cutoffs cost this one pass. Entropies are stored flat, in the order of the data's rows, chosen then
rejected. A cutoff may be stated as a quantile of the training responses' entropies (testbed scale); what it comes to
in nats is resolved here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors.torch import save_file

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.policy import Policy
from rlhf_core.supervised.sft import sequence_statistics
from tasks.params.pages import Address, read_settings
from tasks.params.settings import typed
from tasks.running.artifacts import check_version, read_json, read_jsonl, read_tensors, stage_output, write_json
from tasks.running.loading import encode, load_encoder, load_policy
from tasks.running.stage import command_line, run_stage, set_threads

VERSION = 2
STAGE = "entropies"

SPLITS = ("train", "validation", "ood")


@dataclass(frozen=True)
class EntropySpec:
    """Entropy cutoffs by the name that a recipe uses: `"1.75": {quantile: .7}` or `"1.75": {nats: 1.75}`."""

    cutoffs: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, rule in self.cutoffs.items():
            if not isinstance(rule, Mapping) or set(rule) not in ({"nats"}, {"quantile"}):
                raise RecipeError(f"entropy cutoff {name}: give either 'quantile' or 'nats', not {rule}")


@torch.no_grad()
def response_entropies(policy: Policy, sequences: list[EncodedSequence], batch: int = 64) -> list[torch.Tensor]:
    """Entropies per response token of each sequence, in batches of similar length."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    result: list[torch.Tensor] = [torch.zeros(0)] * len(sequences)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        statistics, mask = sequence_statistics(policy, [sequences[i] for i in rows], with_entropy=True)
        for i, values, real in zip(rows, statistics.entropies.cpu(), mask.cpu(), strict=True):
            result[i] = values[real].clone()
    return result


def resolve_cutoffs(spec: EntropySpec, entropies: torch.Tensor) -> dict[str, float]:
    """Cutoffs in nats by name; quantiles are those of `entropies`."""
    resolved = {}
    for name, rule in spec.cutoffs.items():
        if "nats" in rule:
            resolved[str(name)] = float(rule["nats"])
        else:
            resolved[str(name)] = float(torch.quantile(entropies[:1_000_000], float(rule["quantile"])))
    return resolved


def measure(
    spec_path: Annotated[Address, "cutoffs (YAML)"], sft: Path, data: Path, out: Path, version: int | None = None
) -> None:
    """Writes entropies of every preference split and the cutoffs in nats."""
    check_version(STAGE, VERSION, version)
    set_threads()
    spec = typed(EntropySpec, read_settings(spec_path), str(spec_path))
    with stage_output(out, stage=STAGE, version=VERSION, inputs=[spec_path, sft, data]) as result:
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
        levels = {f"entropy_q{q}": float(torch.quantile(train[:1_000_000], q / 100)) for q in (10, 25, 50, 75, 90)}
        write_json(result / "metrics.json", {"entropy_mean": float(train.mean()), **levels})


def _flat(split: str, values: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{split}.values": torch.cat(values), f"{split}.lengths": torch.tensor([len(v) for v in values])}


def load_entropies(folder: Path, split: str) -> list[list[float]]:
    """Entropies per response of a split (all chosen, then all rejected) or of the `examples`."""
    stored = read_tensors(folder / "entropies.safetensors")
    return [row.tolist() for row in stored[f"{split}.values"].split(stored[f"{split}.lengths"].tolist())]


def resolve_segmenter(spec: Mapping[str, Any], entropies: Path | None) -> dict[str, Any]:
    """A segmenter spec with its entropy cutoff in nats.

    Raises:
        RecipeError: an entropy segmenter without the result of the `entropies` stage.
    """
    if spec.get("kind") != "entropy":
        return dict(spec)
    if entropies is None:
        raise RecipeError("a segmenter of kind entropy needs the SFT model's entropies: give --entropies")
    cutoffs = read_json(entropies / "cutoffs.json")
    name = str(spec.get("cutoff"))
    if name not in cutoffs:
        raise DataError(
            f"entropy cutoff {name} is not among {sorted(cutoffs)}",
            file=str(entropies / "cutoffs.json"),
            remedy="Add it to the scale's entropies.yaml",
        )
    return {**spec, "cutoff": cutoffs[name]}


main = command_line(measure)


if __name__ == "__main__":
    run_stage(main)
