"""Explaining a reward: what a trained reward model pays each token of one response, and where its segments lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.aggregation import build_aggregation
from rlhf_core.rewards.preference_training import score_parts
from rlhf_core.segmentation import SaT, Segmenter, build_segmenter
from rlhf_core.segmentation.end_tokens import end_token_id
from rlhf_core.segmentation.sat import KNOWN_FILE
from tasks.artifacts import read_json, read_jsonl
from tasks.entropies import resolve_segmenter, response_entropies
from tasks.loading import load_encoder, load_policy, load_segmenter
from tasks.reward_model import segment_sequences, sequences_with_ends, token_rewards

#: What tells the results of upstream stages apart.
MARKS: dict[str, Callable[[Path], bool]] = {
    "data": lambda path: (path / "data.json").is_file(),
    "sft": lambda path: (path / "generations.jsonl").is_file(),
    "entropies": lambda path: (path / "cutoffs.json").is_file(),
    "segmenter": lambda path: (path / KNOWN_FILE).is_file(),
}


def explain(
    model_dir: Path,
    prompt: str,
    response: str,
    *,
    segmenter: Mapping[str, Any] | None = None,
    sft: Path | None = None,
    data: Path | None = None,
) -> dict[str, Any]:
    """The rewards that a reward model gives to one response.

    Args:
        model_dir: the `result/model` folder of a `reward_model` stage (its `result` folder is understood, too).
        prompt: user text, or a dialogue in one string.
        response: the answer to it.
        segmenter: read the model on other segments than those it was trained on; an entropy cutoff is a number of
            nats or the name of one in the scale's entropies.yaml.
        sft: result of the `sft` stage, whose entropies an entropy segmenter needs; None takes the one that the
            model's record names.
        data: result of the `prepare` stage, which holds chat template and limits; None takes the recorded one.

    Returns:
        `{tokens: [text of each response token, EOS included], rewards: [per token, the segment's value divided evenly;
        None outside every segment], segments: [[first token, token after the last, what it is worth]],
        segment_rewards, weights: per segment, before the weighting and the weight, total: e(x, y), the aggregate}`.

    Raises:
        DataError: a folder that is not what it should be, or that is needed and named nowhere; an empty prompt.
    """
    if not prompt.strip():
        raise DataError("the prompt is empty", field="prompt", remedy="Give the user's text")
    if not (model_dir / "reward_model.json").is_file() and (model_dir / "model").is_dir():
        model_dir = model_dir / "model"
    model, trained = ScalarModel.load(model_dir)
    model.eval()
    encoder = load_encoder(_upstream("data", data, model_dir), model_dir)
    sequence = encoder.sequence({"prompt": prompt}, response)
    cutter = _segmenter(dict(segmenter or trained["segmenter"]), model_dir)
    entropies = _entropies(sequence, encoder, _upstream("sft", sft, model_dir)) if cutter.needs_entropies else None
    if trained.get("end_token"):
        if not isinstance(cutter, SaT):
            raise RecipeError("this reward model reads a token behind each sentence: only a segmenter of kind sat fits")
        end_token = end_token_id(encoder.tokenizer)
        sequences, spans = sequences_with_ends([sequence], encoder, cutter, end_token)
    else:
        sequences, spans = segment_sequences([sequence], encoder, cutter, entropies)
    totals, parts = score_parts(model, sequences, encoder.pad_id, build_aggregation(trained["aggregation"]))
    worth, ids = parts[0]["worth"], sequences[0].sequence.response
    return {
        "tokens": encoder.pieces(ids),
        "rewards": token_rewards(spans[0], worth, len(ids)),
        "segments": [[start, end, value] for (start, end), value in zip(spans[0], worth, strict=True)],
        "segment_rewards": parts[0]["rewards"],
        "weights": parts[0]["weights"],
        "total": float(totals[0]),
    }


def shared_credit(results: Path, names: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Wrong sampled solutions that several rows kept, each with every row's credit of its tokens.

    Args:
        results: of a scale.
        names: rows of the same task that learned from a reward of sampled solutions.
        seed: of the rows.

    Returns:
        `[{prompt, tokens, rewrite: the true correction, credit: {row: per token, unclipped where known}}]`.

    Raises:
        DataError: a row without a result of that seed or without credit, or rows that share no solution.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name in names:
        files = sorted(results.glob(f"*/policy/{name}/{seed}/result/credit.jsonl"))
        if not files:
            raise DataError(
                f"row '{name}' (seed {seed}) has no credit of sampled solutions",
                file=str(results),
                remedy="Run it first; rows that learn from a reward of sampled solutions have one",
            )
        found[name] = {row["id"]: row for row in read_jsonl(files[0])}
    first = found[names[0]]
    shared = [key for key in first if all(key in rows for rows in found.values())]
    if not shared:
        raise DataError(f"the rows {', '.join(names)} share no solution", remedy="Name rows of one task and size")
    return [
        {
            **{field: first[key][field] for field in ("prompt", "tokens", "rewrite")},
            "credit": {name: rows[key].get("unclipped") or rows[key]["credit"] for name, rows in found.items()},
        }
        for key in shared
    ]


def _segmenter(spec: dict[str, Any], model_dir: Path) -> Segmenter:
    if spec.get("kind") == "sat":
        return load_segmenter(spec, _upstream("segmenter", None, model_dir))
    cutoff = spec.get("cutoff")
    if isinstance(cutoff, str):
        spec = resolve_segmenter(spec, _upstream("entropies", None, model_dir))
    elif spec.get("kind") == "entropy" and not isinstance(cutoff, int | float):
        raise RecipeError(f"entropy segmenter: cutoff is {cutoff}; give nats or the name of a cutoff of the scale")
    return build_segmenter(spec)


def _entropies(sequence: EncodedSequence, encoder: Encoder, sft: Path) -> list[list[float]]:
    policy = load_policy(sft / "model", encoder)
    policy.model.eval()
    return [values.tolist() for values in response_entropies(policy, [sequence])]


def _upstream(name: str, given: Path | None, model_dir: Path) -> Path:
    """The result of an upstream stage: the one given, else the one that the model's record names."""
    if given is not None:
        if not MARKS[name](given):
            raise DataError(f"this is not a result of the {name} stage", file=str(given), remedy=f"Give {name} another")
        return given
    record = model_dir.parent.parent / "record" / "record.json"
    if not record.is_file():
        raise DataError(
            f"no record beside the model tells its {name}", file=str(record), remedy=f"Name the {name} result yourself"
        )
    for path in map(Path, read_json(record)["inputs"]):
        if MARKS[name](path):
            return path
    raise DataError(
        f"the {name} result that this model was trained on is not where its record says",
        file=str(record),
        remedy=f"Run from the folder in which it was trained, fetch that result, or name the {name} result yourself",
    )
