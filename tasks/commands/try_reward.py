"""A reward function of the user's own, applied to a few rollouts: prompt, response and reward, and what they depend on.

Rollouts are those of the newest policy in results/, else the SFT model's answers, else responses of the tree's own
pairs; `--prompts` names other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.errors import DataError, RecipeError
from tasks.commands.options import print_table
from tasks.params.data import RealSpec, data_spec
from tasks.params.pages import read_settings
from tasks.params.scales import scale_entries

if TYPE_CHECKING:
    from rlhf_core.data.encoding import Encoder
    from tasks.scoring.own_rewards import TriedReward

#: Width of the table, and of its column of rewards.
WIDTH, REWARD_WIDTH = 80, 9


@dataclass(frozen=True)
class Tried:
    """Rollouts that a reward is tried on.

    Attributes:
        source: where they are from, in words.
        rows: the data rows behind the prompts, as rewards get them.
        responses: one for each row.
        encoder: tokens of both.
    """

    source: str
    rows: Sequence[Mapping[str, Any]]
    responses: Sequence[str]
    encoder: Encoder


def print_tried_reward(root: Path, scale: str, name: str, count: int, prompts: Path | None = None) -> None:
    """Applies a reward function to a few rollouts and prints what it gives.

    Args:
        root: the repository, or any folder where `prompts` are given.
        scale: whose results are looked for.
        name: `module:function`.
        count: rollouts.
        prompts: rows to try it on instead.

    Raises:
        RecipeError: no such function, one that fails, a wrong shape, values that are not numbers, or nothing to try it
            on.
        NumericsError: a value that is not finite.
        DataError: rows that cannot be read.
    """
    from rlhf_core.user_code import import_callable
    from tasks.scoring.own_rewards import text_batch, try_reward

    import_callable(name, "reward function")
    found = _of_file(prompts, count) if prompts is not None else _of_tree(root, scale, count)
    tried = try_reward(name, text_batch(found.encoder, found.rows, found.responses))
    _print(name, found, tried)


def _of_tree(root: Path, scale: str, count: int) -> Tried:
    """Returns rollouts of the tree: of its newest policy, else of its newest SFT model, else of its pairs.

    Raises:
        RecipeError: there are none.
    """
    results = root / "results" / scale
    for stage, file in (("policy", "rollouts.jsonl"), ("sft", "generations.jsonl")):
        there = [path for path in results.glob(f"*/{stage}/*/*/result/{file}") if path.stat().st_size]
        for path in sorted(there, key=lambda path: path.stat().st_mtime, reverse=True):
            if rollouts := [row for row in read_jsonl(path) if row.get("response")]:
                return _of_result(path, rollouts, count)
    for address in scale_entries(root, scale, "data").values():
        spec = data_spec(read_settings(address.under(root)), str(address))
        if isinstance(spec, RealSpec) and spec.source == "directory":
            from tasks.data_specs.data_sets import data_directory

            folder = root / data_directory(spec.directory)
            if pairs := sorted(folder.glob(f"{spec.preference[0]}.train.jsonl*")):
                return _of_file(pairs[0], count)
    raise RecipeError(
        f"no policy or SFT model is in results/{scale}, and no pairs are in the tree; give rows: --prompts pairs.jsonl"
    )


def _of_result(path: Path, rollouts: Sequence[Mapping[str, Any]], count: int) -> Tried:
    """Returns rollouts of a stage's result, with the data rows behind their prompts."""
    from tasks.running.loading import load_encoder
    from tasks.scoring.reward_models import upstream

    model = path.parent / "model"
    data = upstream("data", None, model)
    known = dict(_records(data))
    chosen = evenly_spaced(rollouts, count)
    rows = [{"id": row["id"], "prompt": row["prompt"], **known.get((row["id"], row["prompt"]), {})} for row in chosen]
    source = f"rollouts of {path.parts[-5]} {path.parts[-4]}, seed {path.parts[-3]}"
    return Tried(source, rows, [row["response"] for row in chosen], load_encoder(data, model))


def _records(data: Path) -> Iterable[tuple[tuple[Any, str], dict[str, Any]]]:
    """Yields the prompts of a data set by id and text: of training, and of the benchmarks' first turns."""
    for file in sorted((data / "benchmarks").glob("*.jsonl")):
        for item in read_jsonl(file):
            row = {"id": item["id"], "prompt": item["turns"][0], "source": item["source"], "meta": item["metas"][0]}
            row |= {"messages": item["messages"]} if "messages" in item else {}
            yield (item["id"], row["prompt"]), row
    if (data / "prompts.jsonl").exists():
        for row in read_jsonl(data / "prompts.jsonl"):
            yield (row.get("id"), row["prompt"]), row


def _of_file(file: Path, count: int) -> Tried:
    """Returns rows of a file: prompts with a response, or both responses of preference pairs.

    Tokens are those of a tokenizer trained on these texts, since no model says which it reads.
    """
    from rlhf_core.data.encoding import Encoder, Limits
    from rlhf_core.data.templates import chat_template
    from rlhf_core.data.tokenizers import train_byte_level_bpe
    from tasks.data_specs.pair_files import read_rows
    from tasks.data_specs.pair_formats import read_pairs

    answered = [row for _, row in read_rows(file).rows if _texts(row, "prompt", "response")]
    if not answered:
        pairs = [row for _, row in read_pairs(file, {})[1].rows if _texts(row, "prompt", "chosen", "rejected")]
        pairs = evenly_spaced(pairs, (count + 1) // 2)
        answered = [{**row, "response": row[name]} for row in pairs for name in ("chosen", "rejected")][:count]
    chosen = evenly_spaced(answered, count)
    if not chosen:
        raise DataError("no row has a prompt with a response", file=str(file), remedy="Give prompt and response")
    texts = [str(row[name]) for row in chosen for name in ("prompt", "response")]
    tokenizer = train_byte_level_bpe(texts, 2048)
    encoder = Encoder(tokenizer, chat_template("plain"), Limits(1024, 4096))
    rows = [{name: value for name, value in row.items() if name != "response"} for row in chosen]
    return Tried(f"responses of {file.name}", rows, [str(row["response"]) for row in chosen], encoder)


def _texts(row: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(row.get(name), str) and row[name].strip() for name in names)


def evenly_spaced(rows: Sequence[Any], count: int) -> list[Any]:
    """Returns so many rows, evenly spaced; all where there are fewer."""
    return list(rows) if len(rows) <= count else [rows[place * len(rows) // count] for place in range(count)]


def _print(name: str, found: Tried, tried: TriedReward) -> None:
    texts = (WIDTH - REWARD_WIDTH - 4) // 5
    rows = [
        (_shortened(str(row["prompt"]), 2 * texts), _shortened(response, 3 * texts), f"{value:.4g}")
        for row, response, value in zip(found.rows, found.responses, tried.totals.tolist(), strict=True)
    ]
    print_table(("prompt", "response", "reward"), rows, right=("reward",))
    print(f"{name} gives {tried.gives}; {len(found.responses)} {found.source}")
    print(statistics_line(tried))


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
