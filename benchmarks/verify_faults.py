"""Faults that `rewardsmith verify` must find, each in one stage of demo-all (two where results are exchanged).

The list was committed before any tolerance was set; `python -m benchmarks.verify_sees` plants each and reports which
are found. Where `says` has "ran again", the stage itself makes the fault, with one thing changed. Other faults put
finished outputs in the place of others, with their records, or change the rows of a file as the named mistake would;
then records are made to fit.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fault_planting import Plant, Planting, Row, again, again_on, evaluated, exchanged, instead
from tasks.running.artifacts import read_json, read_jsonl, write_json, write_jsonl

SEGMENT, BANDIT, TOKEN = (f"segment/policy/{name}/0" for name in ("segment", "bandit", "token"))
DIALOGUE, LONGFORM = "shared/data/dialogue", "shared/data/longform"


@dataclass(frozen=True)
class Fault:
    """A fault in one or two stages of finished headline rows."""

    says: str
    stages: tuple[str, ...]
    plant: Plant


def with_labels_exchanged(at: Planting) -> Path:
    """Returns data in which a tenth of the training pairs have chosen and rejected exchanged."""
    data = at.work / "exchanged"
    if not data.exists():
        shutil.copytree(at.finished(LONGFORM) / "result", data)
        draw = random.Random(0)
        rows = read_jsonl(data / "preference.train.jsonl")
        for row in rows:
            if draw.random() < 0.1:
                row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
        write_jsonl(data / "preference.train.jsonl", rows)
    return data


def other_data(at: Planting) -> Path:
    """Returns the dialogue data of another seed."""
    return at.again("other_data", DIALOGUE, spec={"seed": 1})


def rotated_prompts(at: Planting) -> None:
    """Gives each prompt the reference responses of the next prompt."""
    path = at.result() / "references.json"
    facts = read_json(path)
    write_json(path, facts | {"prompts": [*facts["prompts"][1:], facts["prompts"][0]]})


def rotated(file: str, *fields: str) -> Plant:
    """Returns a fault that gives each row of a file some fields of the next row."""

    def rotate(rows: list[Row]) -> list[Row]:
        following = [*rows[1:], rows[0]]
        return [row | {field: other[field] for field in fields} for row, other in zip(rows, following, strict=True)]

    return lambda at: at.rows(file, rotate)


def stale_result(at: Planting) -> None:
    """Leaves the reward model of previous data, which ran again on the data of another seed."""
    again_on("--data", other_data)(at)


def inverted_wins(at: Planting) -> None:
    """Counts wins over the SFT model as losses and losses as wins."""

    def invert(metrics: Mapping[str, float]) -> dict[str, float]:
        return {name: 100 - v if name.endswith("win_rate_vs_sft") else v for name, v in metrics.items()}

    def invert_row(rows: list[Row]) -> list[Row]:
        return [row | {"win_rate_vs_sft": 100 - row["win_rate_vs_sft"]} for row in rows]

    at.metrics(lambda metrics: invert(metrics))
    at.rows("checkpoints.jsonl", invert_row)


def no_length_control(at: Planting) -> None:
    """Writes plain win rates in the place of length-controlled ones."""

    def plain(metrics: dict[str, float]) -> dict[str, float]:
        found = dict(metrics)
        for name in metrics:
            if name.endswith("/alpaca_lc") and name.count("/") == 3:
                _, row, seed, _ = name.split("/")
                run = at.finished(f"segment/policy/{row}/{seed}")
                run = run if run.exists() else at.finished(f"shared/sft/{row}/{seed}")
                found[name] = read_json(run / "result" / "metrics.json")["alpaca_wr"]
        return found

    at.metrics(plain)


def gold_for_proxy(at: Planting) -> None:
    """Notes true rewards where proxy rewards belong."""

    def noted(rows: list[Row]) -> list[Row]:
        return [row | {name: row["true_reward"] for name in row if name.split("/")[0] == "proxy"} for row in rows]

    at.rows("history.jsonl", noted)


def one_order(at: Planting) -> None:
    """Shows the judge the model's answer first, always."""
    at.rows("judgements.jsonl", lambda rows: [row | {"first": "model"} for row in rows])


def fewer_sentences(at: Planting) -> None:
    """Ends only every second sentence."""
    path = at.result() / "sentences.json"
    write_json(path, {text: ends[::-1][::2][::-1] for text, ends in read_json(path).items()})


def every_aspect(at: Planting) -> None:
    """Chooses all aspects."""
    path = at.result() / "selection.json"
    selection = read_json(path)
    write_json(path, selection | {"chosen": sorted(selection["aspects"])})


def inverted_pairs(at: Planting) -> None:
    """Exchanges the rewards of chosen and rejected answers."""

    def invert(rows: list[Row]) -> list[Row]:
        return [r | {"chosen": r["rejected"], "rejected": r["chosen"], "right": not r["right"]} for r in rows]

    at.rows("generations.jsonl", invert)
    at.metrics(lambda metrics: {name: 100 - value for name, value in metrics.items()})


FAULTS: Mapping[str, Fault] = {
    "sft_served": Fault(
        "the SFT model is saved and evaluated as a policy", (SEGMENT,), evaluated("shared/sft/phi3-mini/0")
    ),
    "policy_seed": Fault("a policy ran again with another seed", (SEGMENT,), again({"--seed": "7"})),
    "data_seed": Fault("the data ran again with another seed", (DIALOGUE,), again(spec={"seed": 1})),
    "initial_weights": Fault(
        "an SFT model of another seed: other initial weights and order",
        ("shared/sft/phi3-mini/0",),
        instead("shared/sft/phi3-mini/1"),
    ),
    "shaping": Fault(
        "PAR's policy ran again with tanh in the place of its sigmoid",
        ("par/policy/par/0",),
        again({"--row": "params/par/rows.yaml:tanh-centered"}),
    ),
    "reward_sign": Fault("a policy ran again with its reward's sign changed", (BANDIT,), again(row={"weight": -1})),
    "swapped_rows": Fault("the results of two rows are exchanged", (BANDIT, TOKEN), exchanged),
    "permuted_labels": Fault(
        "a reward model ran again with a tenth of the labels exchanged",
        ("alarm/reward_model/holistic-qa/0",),
        again_on("--data", with_labels_exchanged),
    ),
    "permuted_prompts": Fault(
        "each prompt has the next prompt's reference responses", ("par/references/standard/0",), rotated_prompts
    ),
    "other_reward_model": Fault(
        "a policy of the bandit reward model in the place of the segment reward model's",
        (SEGMENT,),
        instead("segment/policy/bandit-as-segment/0"),
    ),
    "no_kl": Fault("a policy ran again with KL coefficient 0", (SEGMENT,), again(scale={"optimiser": {"kl_coef": 0}})),
    "half_the_updates": Fault(
        "a policy ran again with half the iterations",
        ("alarm/policy/qa-alarm/0",),
        again(scale={"optimiser": {"iterations": 8}}),
    ),
    "truncated_answers": Fault(
        "a policy is evaluated with answers cut at 24 tokens",
        ("alarm/policy/qa-holistic/0",),
        evaluated(max_new_tokens=24),
    ),
    "greedy_evaluation": Fault(
        "a policy's evaluation is greedy in the place of sampled", ("par/policy/vanilla/0",), evaluated(temperature=0)
    ),
    "other_normaliser": Fault(
        "a normaliser of another seed's reward model",
        ("segment/normaliser/segment/0",),
        instead("segment/normaliser/segment/1"),
    ),
    "stale_result": Fault("a reward model of previous data", ("segment/reward_model/bandit/0",), stale_result),
    "inverted_wins": Fault("wins over the SFT model count as losses", ("segment/policy/sentence/0",), inverted_wins),
    "no_length_control": Fault(
        "tables have plain win rates as length-controlled ones", ("segment/tables-demo",), no_length_control
    ),
    "gold_for_proxy": Fault("the history has true rewards as proxy rewards", ("par/policy/minmax/0",), gold_for_proxy),
    "one_order": Fault("the judge sees the model's answer first, always", ("segment/policy/token/1",), one_order),
    "other_segmenter": Fault(
        "a sentence segmenter ends every second sentence", ("shared/segmenter/sat-3l-dialogue",), fewer_sentences
    ),
    "other_tokenizer": Fault(
        "a tokenizer ran again with a smaller vocabulary",
        ("shared/tokenizer/dialogue",),
        again(spec={"vocabulary": 512}),
    ),
    "other_entropies": Fault(
        "entropies of another seed's SFT model",
        ("shared/entropies/phi3-mini/0",),
        instead("shared/entropies/phi3-mini/1"),
    ),
    "sampling_temperature": Fault(
        "solutions sampled again at temperature 0.8 in the place of 0.7",
        ("shared/samples/rlmec-qa/0",),
        again(spec={"sampling": {"temperature": 0.8}}),
    ),
    "exchanged_rewrites": Fault(
        "each wrong solution has the next one's rewrite",
        ("shared/teacher/rlmec-qa/0",),
        rotated("rewrites.jsonl", "rewrite"),
    ),
    "exchanged_token_rewards": Fault(
        "each solution has the next one's token rewards",
        ("rlmec/generative_reward_model/qa/0",),
        rotated("token_rewards.jsonl", "rewards", "probabilities"),
    ),
    "other_aspect": Fault(
        "another aspect's model is served",
        ("alarm/aspect_model/relevance/0",),
        instead("alarm/aspect_model/factuality/0"),
    ),
    "every_aspect": Fault("the selection chooses every aspect", ("alarm/selection/qa/0",), every_aspect),
    "inverted_pairs": Fault(
        "rewards of chosen and rejected answers are exchanged",
        ("sentence/reward_bench/bench-response/0",),
        inverted_pairs,
    ),
    "other_optimiser": Fault(
        "a policy of rejection sampling in the place of RLMEC's",
        ("rlmec/policy/qa-rlmec/0",),
        instead("rlmec/policy/qa-rft/0"),
    ),
}
