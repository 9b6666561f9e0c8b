"""Explanation of a reward: a trained reward model's pay for each token of one response, and its segments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from tasks.graph.results import stopped
from tasks.running.artifacts import read_jsonl
from tasks.scoring.reward_models import TrainedScorer
from tasks.scoring.segmenting import divide_among_tokens


def explain(model_dir: Path, prompt: str, response: str) -> dict[str, Any]:
    """Returns the rewards that a trained reward model gives to one response to a prompt (text, or a dialogue as text).

    Returns:
        `{tokens: [text of each response token, EOS included], rewards: [per token, the segment's value divided evenly;
        None outside every segment], segments: [[first token, token after the last, what it is worth]],
        segment_rewards, weights: per segment, before the weighting and the weight, total: e(x, y), the aggregate}`.

    Raises:
        DataError: a folder that is not what it should be, or that its record does not name; an empty prompt.
    """
    if not prompt.strip():
        raise DataError("the prompt is empty", field="prompt", remedy="Give the user's text")
    scorer = TrainedScorer.load(model_dir)
    sequences, spans = scorer.segmented([{"prompt": prompt}], [response])
    totals, parts = scorer.parts(sequences)
    worth, ids = parts[0]["worth"], sequences[0].sequence.response
    return {
        "tokens": scorer.encoder.pieces(ids),
        "rewards": divide_among_tokens(spans[0], worth, len(ids)),
        "segments": [[start, end, value] for (start, end), value in zip(spans[0], worth, strict=True)],
        "segment_rewards": parts[0]["rewards"],
        "weights": parts[0]["weights"],
        "total": float(totals[0]),
    }


def shared_credit(results: Path, names: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Returns the first row's wrong sampled solutions that all rows kept, with `credit: {row: per token, unclipped
    where known}`.

    Raises:
        DataError: a row without a result of that seed or without credit, or rows that share no solution.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        every = sorted(results.glob(f"*/policy/{name}/{seed}/result"))
        file = next((path for result in every if (path := result / "credit.jsonl").exists()), None)
        if file is None:
            reason = next(filter(None, map(stopped, every)), None)
            raise DataError(
                f"row '{name}' (seed {seed}) " + (f"stopped: {reason}" if reason else "has no credit of solutions"),
                file=str(results),
                remedy="Run it first; rows that learn from a reward of sampled solutions have one",
            )
        found[name] = {row["id"]: row for row in read_jsonl(file)}
    shared = [
        {**row, "credit": {name: rows[key].get("unclipped") or rows[key]["credit"] for name, rows in found.items()}}
        for key, row in found[names[0]].items()
        if all(key in rows for rows in found.values())
    ]
    if not shared:
        raise DataError(f"the rows {', '.join(names)} share no solution", remedy="Name rows of one task and size")
    return shared


def print_explanation(model_dir: Path, prompt: str, response: str) -> None:
    """Prints a response coloured by its rewards, then its segments and tokens with what each is paid."""
    from rich.console import Console

    from tasks.report.colour import coloured_text, pieces

    scored = explain(model_dir, prompt, response)
    found = pieces(scored["tokens"], scored["rewards"], scored["segments"])
    console = Console(markup=False)
    console.print(coloured_text(found, divided=True))
    for number, (reward, weight) in enumerate(zip(scored["segment_rewards"], scored["weights"], strict=True), start=1):
        console.print(f"segment {number}: reward {reward:+.3f}, weight {weight:.3f}", style="dim", highlight=False)
    console.print(f"response: {scored['total']:+.3f}", style="dim", highlight=False)
    for piece in found:
        value = "      -" if piece.reward is None else f"{piece.reward:+7.3f}"
        console.print(f"{value}  {piece.text.strip()!r}", style="dim", highlight=False)


def print_credit(results: Path, names: Sequence[str], seed: int) -> None:
    """Prints wrong solutions that several rows kept, coloured by each row's credit, with their corrections."""
    from rich.console import Console

    from tasks.report.colour import colour_scale, coloured_text, pieces

    console = Console(markup=False)
    for solution in shared_credit(results, names, seed):
        console.print(solution["prompt"], style="bold", highlight=False)
        for name, credit in solution["credit"].items():
            found = pieces(solution["tokens"], credit, marked=solution["mistaken"])
            limit = colour_scale(found)
            console.print(f"{name}, {-limit:+.2f} to {limit:+.2f}", style="dim", highlight=False)
            console.print(coloured_text(found))
        console.print(f"rewrite: {solution['rewrite']}", style="dim", highlight=False)
    console.print("Underlined: tokens that the rewrite replaces or deletes.", style="dim")
