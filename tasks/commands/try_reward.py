"""A reward function of the user's own, applied to a few rollouts: prompt, response and reward, and what they depend on.

Rollouts are those of the newest policy in results/, or rows of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.errors import DataError, RecipeError
from tasks.commands.options import print_table

if TYPE_CHECKING:
    from rlhf_core.data.encoding import Encoder
    from tasks.scoring.texts import TriedReward

#: Characters of a prompt and of a response in the table, which is 80 wide.
PROMPT_WIDTH, RESPONSE_WIDTH = 26, 39


def print_tried_reward(root: Path, scale: str, name: str, count: int, prompts: Path | None = None) -> None:
    """Applies a reward function, `module:function`, to a few rollouts of the newest policy, or to given rows, and
    prints what it gives.

    Raises:
        RecipeError: no such function, one that fails, a wrong shape, values that are not numbers, or nothing to try it
            on.
        NumericsError: a value that is not finite.
        DataError: rows that cannot be read.
    """
    from rlhf_core.user_code import import_callable
    from tasks.scoring.texts import text_batch, try_reward

    import_callable(name, "reward function")
    source, rows, encoder = _of_tree(root, scale) if prompts is None else _of_file(prompts, count)
    chosen = evenly_spaced(rows, count)
    responses = [str(row["response"]) for row in chosen]
    records = [{field: value for field, value in row.items() if field != "response"} for row in chosen]
    tried = try_reward(name, text_batch(encoder, records, responses))
    lines = [
        (_shortened(str(row["prompt"]), PROMPT_WIDTH), _shortened(str(row["response"]), RESPONSE_WIDTH), f"{value:.4g}")
        for row, value in zip(chosen, tried.totals.tolist(), strict=True)
    ]
    print_table(("prompt", "response", "reward"), lines, right=("reward",))
    print(f"{name} gives {tried.gives}; {len(responses)} {source}")
    print(statistics_line(tried))


def _of_tree(root: Path, scale: str) -> tuple[str, list[dict[str, Any]], Encoder]:
    """Returns where they are from, rollouts of the newest policy, each with its prompt's data row, and an encoder."""
    from tasks.running.loading import load_encoder
    from tasks.scoring.reward_models import upstream

    found = (root / "results" / scale).glob("*/policy/*/*/result/rollouts.jsonl")
    for file in sorted(found, key=lambda file: file.stat().st_mtime, reverse=True):
        if rollouts := [row for row in read_jsonl(file) if row.get("response")]:
            model = file.parent / "model"
            data = upstream("data", None, model)
            known = {(row.get("id"), row["prompt"]): row for row in read_jsonl(data / "prompts.jsonl")}
            rows = [
                {"id": row["id"], **known.get((row["id"], row["prompt"]), {}), "prompt": row["prompt"],
                 "response": row["response"]}
                for row in rollouts
            ]  # fmt: skip
            return f"rollouts of policy {file.parts[-4]}, seed {file.parts[-3]}", rows, load_encoder(data, model)
    raise RecipeError(f"no policy is in results/{scale}; run a row, or give rows: --prompts pairs.jsonl")


def _of_file(file: Path, count: int) -> tuple[str, list[dict[str, Any]], Encoder]:
    """Returns prompts of a file with a response, or both responses of its preference pairs; tokens are those of a
    tokenizer trained on these texts, since no model says which it reads."""
    from rlhf_core.data.encoding import Encoder, Limits
    from rlhf_core.data.templates import chat_template
    from rlhf_core.data.tokenizers import train_byte_level_bpe
    from tasks.data_specs.pair_files import read_rows
    from tasks.data_specs.pair_formats import read_pairs

    answered = [row for _, row in read_rows(file).rows if _texts(row, "prompt", "response")]
    if not answered:
        pairs = [row for _, row in read_pairs(file, {})[1].rows if _texts(row, "prompt", "chosen", "rejected")]
        pairs = evenly_spaced(pairs, (count + 1) // 2)
        answered = [{**row, "response": row[name]} for row in pairs for name in ("chosen", "rejected")]
    if not answered:
        raise DataError("no row has a prompt with a response", file=str(file), remedy="Give prompt and response")
    rows = evenly_spaced(answered, count)
    tokenizer = train_byte_level_bpe([str(row[name]) for row in rows for name in ("prompt", "response")], 2048)
    return f"responses of {file.name}", rows, Encoder(tokenizer, chat_template("plain"), Limits(1024, 4096))


def _texts(row: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(row.get(name), str) and row[name].strip() for name in names)


def evenly_spaced(rows: Sequence[Any], count: int) -> list[Any]:
    """Returns so many rows, evenly spaced; all where there are fewer."""
    return list(rows) if len(rows) <= count else [rows[place * len(rows) // count] for place in range(count)]


def _shortened(text: str, width: int) -> str:
    """Returns a text in one line of at most so many characters, without control characters."""
    line = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def statistics_line(tried: TriedReward) -> str:
    """Returns mean, deviation and Pearson's correlation with length, or what a constant reward means."""
    rewards, lengths = tried.totals.double().numpy(), tried.lengths.double().numpy()
    if rewards.std() == 0:
        return f"every reward is {rewards[0]:.4g}: a reward that is the same for every response teaches nothing"
    line = f"mean {rewards.mean():.4g}, standard deviation {rewards.std():.4g}"
    correlated = f", correlation with length in tokens {np.corrcoef(rewards, lengths)[0, 1]:+.2f}"
    return line + (correlated if lengths.std() else "")
