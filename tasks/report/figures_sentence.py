"""Figures 2 to 11 of *Sentence-level Reward Model can Generalize Better*, and what the testbed shows beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.evaluation.reward_bench import SECTIONS
from rlhf_core.published.row_map import RecipeRow, data_set, recipe_row
from tasks.report.claims import paper_claims_figure
from tasks.report.figure_data import (
    FigureData,
    Mean,
    Panel,
    Series,
    curve_series,
    mean_series,
    metric_bars,
    metric_by_seed,
    published_figure,
    token_spans,
)
from tasks.report.figures_training import coloured_examples, examples, reward_models, training_curves
from tasks.report.outputs import ResultTree, StageOutput, mean_and_standard_error, of_one_seed, stage_record
from tasks.report.win_rates import win_rate_source

PAPER = "sentence"
METHODS = ("sentence", "response", "token", "res2sent", "sent2res")
LABELS = {
    "sentence": "Sentence (ours)",
    "response": "Response",
    "token": "Token",
    "res2sent": "Res2Sent",
    "sent2res": "Sent2Res",
    "da": "DA",
    "va": "VA",
    "vw": "VW",
    "sat-1l": "sat-1l",
    "sat-9l": "sat-9l",
}
#: Palette slots; a method keeps its colour in every figure.
COLOURS = {name: slot for slot, name in enumerate(METHODS)}
GRANULARITIES = ("sentence", "response", "token")
AGGREGATIONS = ("da", "va", "vw", "sentence")
#: The segmenter's layers and the row that reads it.
SEGMENTERS = {"sat-1l": "sat-1l", "sat-3l": "sentence", "sat-9l": "sat-9l"}
REWARD_MODELS = (
    *("response", "token", "sentence", "da", "va", "vw", "sentence-without-end", "va-without-end", "vw-without-end"),
    *("sentence-sat-1l", "sentence-sat-9l", "preference-transformer"),
)
SECTION_TITLES = dict(zip(SECTIONS, ("Chat", "Chat-Hard", "Safety", "Reasoning"), strict=True)) | {"average": "Average"}
#: Tokens before a sentence's end that Figure 7 shows.
BEFORE_END = 6


def figures(tree: ResultTree) -> list[FigureData]:
    """Returns all figures in the order of the page."""
    policies = [recipe_row(PAPER, name) for name in METHODS]
    models = [RecipeRow(name, PAPER, "reward_model") for name in REWARD_MODELS]
    return [
        paper_claims_figure(PAPER, tree),
        training_curves(
            tree,
            policies,
            LABELS,
            COLOURS,
            "Means over worlds; the band is one standard error. Rows of Table 1, first backbone.",
        ),
        reward_models(
            tree,
            models,
            "Accuracy on held-out pairs beside the annotator's Bayes ceiling; fidelity is the correlation of what each "
            "sentence is worth with the true rewards of the clauses it covers.",
        ),
        reward_bench(tree),
        best_of_n(tree, "3a", "alpaca", "judge"),
        best_of_n(tree, "3b", "arena", "judge"),
        reward_curves(tree),
        reward_pictures(tree),
        aggregations(tree),
        segmenters(tree),
        token_rewards_before_ends(tree),
        second_judge(tree),
        best_of_n(tree, "9", "alpaca", "second"),
        *side_by_side(tree),
    ]


def recorded_figures(tree: ResultTree) -> list[FigureData]:
    """Returns figures of the runs' records, which no result depends on: the time that training takes (Figure 6,
    left)."""
    figure = FigureData(
        key="figure-6-time",
        title="Figure 6, left. Training time of RLHF with each segmenter",
        caption="Seconds of the whole policy stage on the machine that ran it, evaluation included; runs side by side "
        "share its cores.",
    )
    panel = Panel("training time", "", "seconds", [])
    means: dict[str, Mean] = {}
    for label, row in SEGMENTERS.items():
        outputs = tree.outputs(PAPER, "policy", row)
        records = [record for output in outputs.values() if (record := stage_record(output.path))]
        if seconds := [float(record["seconds"]) for record in records]:
            means[label] = mean_and_standard_error(seconds)
        else:
            figure.missing.append(row)
    panel.series = mean_series("training time", means, colour=0, style="bars")
    figure.panels = [panel]
    return [figure]


def reward_bench(tree: ResultTree) -> FigureData:
    """Returns Figure 2: accuracy of each granularity on the four sections."""
    figure = published_figure(
        "sentence/2",
        "Sections of the testbed's benchmark have the same meaning. Error bars: one standard error over worlds.",
    )
    panel = Panel("RewardBench", "", "pairwise accuracy, %", [])
    for name in GRANULARITIES:
        outputs = figure.needs(f"bench-{name}", tree.of(recipe_row(PAPER, f"bench-{name}")))
        panel.series += metric_bars(LABELS[name], outputs, SECTION_TITLES, COLOURS[name])
    figure.panels = [panel]
    return figure


def best_of_n(tree: ResultTree, number: str, benchmark: str, judge: str) -> FigureData:
    """Returns figures 3a, 3b and 9: win rate over greedy decoding as N grows, by a judge and by true rewards."""
    figure = published_figure(
        f"sentence/{number}",
        "The best of the first N of one pool of 32 responses, against the greedy one; ties are half a win. "
        + ("The second judge errs by one reward unit on each answer." if judge == "second" else ""),
    )
    for measure, title in ((judge, "by the judge"), ("true", "by true rewards")):
        panel = Panel(title, "N", "win rate over greedy, %", [])
        for name in GRANULARITIES:
            outputs = tree.of(recipe_row(PAPER, f"best-of-n-{name}"))
            if not outputs and measure != "true":
                figure.missing.append(f"best-of-n-{name}")
            panel.series += _over_sizes(LABELS[name], outputs, f"{measure}/{benchmark}/", COLOURS[name])
        figure.panels.append(panel)
    return figure


def _over_sizes(label: str, outputs: Mapping[int, StageOutput], prefix: str, colour: int) -> list[Series]:
    names = {name for output in outputs.values() for name in output.metrics if name.startswith(prefix)}
    sizes = sorted(int(name.removeprefix(prefix)) for name in names)
    means = {size: metric_by_seed(outputs, f"{prefix}{size}") for size in sizes}
    return mean_series(label, means, colour=colour)


def reward_curves(tree: ResultTree) -> FigureData:
    """Returns Figure 3c: the aggregated reward while training on sentence rewards, or on the aggregate itself."""
    figure = published_figure(
        "sentence/3c", "Sum of the rewards of a response, which is the aggregate of Eq. 4 for both; means over worlds."
    )
    for prefix, title in (("tulu3-", "Llama-3.1-Tulu-3-8B-SFT (as in the paper)"), ("", "Llama-3.2-3B-SFT")):
        panel = Panel(title, "training step", "aggregated reward", [])
        for name in ("sentence", "sent2res"):
            outputs = figure.needs(prefix + name, tree.of(recipe_row(PAPER, prefix + name)))
            panel.series += curve_series(LABELS[name], outputs, "reward", colour=COLOURS[name])
        figure.panels.append(panel)
    return figure


def reward_pictures(tree: ResultTree) -> FigureData:
    """Returns Figure 4: the same responses under the three granularities."""
    figure = published_figure(
        "sentence/4",
        "Colour shows what each piece is worth to the model, divided evenly among its tokens, on one scale per model "
        "and text, centred at 0; hover over a piece for its value.",
        kind="coloured_text",
    )
    return coloured_examples(figure, tree, PAPER, {name: LABELS[name] for name in GRANULARITIES})


def aggregations(tree: ResultTree) -> FigureData:
    """Returns Figure 5: aggregation functions, by RewardBench and by the policy's win rate."""
    figure = published_figure("sentence/5", "Numbers of Tables 6 and 7. Error bars: one standard error over worlds.")
    left = Panel("reward model", "", "RewardBench average, %", [])
    right = Panel("policy", "", f"{win_rate_source(tree, PAPER)} win rate vs SFT, %", [])
    for slot, name in enumerate(AGGREGATIONS):
        bench, policy = tree.of(recipe_row(PAPER, f"bench-{name}")), tree.of(recipe_row(PAPER, name))
        figure.missing += [row for row, found in ((f"bench-{name}", bench), (name, policy)) if not found]
        label = "ours" if name == "sentence" else LABELS[name]
        left.series += metric_bars(label, bench, {"average": label}, slot)
        right.series += metric_bars(label, policy, {"win_rate_vs_sft": label}, slot)
    figure.panels = [left, right]
    return figure


def segmenters(tree: ResultTree) -> FigureData:
    """Returns Figure 6, right: the policy's win rate with each segmenter; its training time comes from the records."""
    figure = published_figure("sentence/6", "Numbers of Table 8; the training time stands beside it.")
    panel = Panel("policy", "", f"{win_rate_source(tree, PAPER)} win rate vs SFT, %", [])
    for slot, (label, row) in enumerate(SEGMENTERS.items()):
        outputs = figure.needs(row, tree.of(recipe_row(PAPER, row)))
        panel.series += metric_bars(label, outputs, {"win_rate_vs_sft": label}, slot)
    figure.panels = [panel]
    return figure


def token_rewards_before_ends(tree: ResultTree) -> FigureData:
    """Returns Figure 7: weighted rewards of the preference transformer's tokens by their distance from a clause's
    end."""
    figure = published_figure(
        "sentence/7",
        "Absolute weighted reward of a token in units of its response's mean, over the example responses; 0 is the "
        "last token of a true clause, its mark included.",
    )
    name = "preference-transformer"
    rows = [row for row in examples(tree, PAPER, name).get(name, {}).values() if row.get("true_clauses")]
    if not rows:
        figure.missing = [f"reward_model/{name}"]
        return figure
    found: dict[int, list[float]] = {}
    for row in rows:
        for distance, share in _shares_before_ends(row):
            found.setdefault(distance, []).append(share)
    distances = sorted(distance for distance in found if distance <= BEFORE_END)[::-1]
    means = {str(-distance): mean_and_standard_error(found[distance]) for distance in distances}
    series = mean_series("Preference transformer", means, colour=0, style="bars")
    figure.panels = [Panel("example responses", "tokens from the clause's end", "share of the mean", series)]
    return figure


def _shares_before_ends(row: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(tokens up to the end of the clause, absolute weighted reward in units of the response's mean) of every token."""
    spans = token_spans(row["tokens"], row["response"])
    worth = [(start, abs(value)) for start, end, value in row["segments"] if start < end]
    mean = sum(value for _, value in worth) / max(1, len(worth))
    if not mean:
        return []
    ends = [len(row["response"][:end].rstrip()) for _, end, *_ in row["true_clauses"]]
    last = [max((i for i, (start, _) in enumerate(spans) if start < end), default=0) for end in ends]
    shares = []
    for token, value in worth:
        ahead = [place - token for place in last if place >= token]
        if ahead:
            shares.append((min(ahead), value / mean))
    return shares


def second_judge(tree: ResultTree) -> FigureData:
    """Returns Figure 8: our policy against each baseline, by the second judge."""
    figure = published_figure(
        "sentence/8", "Win rate of the sentence policy's answers over each baseline's; ties are half."
    )
    outputs = figure.needs("second-judge", tree.of(recipe_row(PAPER, "second-judge")))
    panel = Panel("AlpacaEval", "against", "win rate of Sentence, %", [])
    opponents = {f"second/{name}": LABELS[name] for name in METHODS if name != "sentence"}
    panel.series = metric_bars("Sentence (ours)", outputs, opponents, COLOURS["sentence"])
    figure.panels = [panel]
    return figure


def side_by_side(tree: ResultTree) -> list[FigureData]:
    """Returns figures 10 and 11: answers of three policies to one question and to one programming task."""
    caption = "Answers of the first seed that was run. "
    question = published_figure(
        "sentence/10", caption + "Colour: the true reward of each clause, where the world knows it.", "coloured_text"
    )
    program = published_figure(
        "sentence/11", caption + "Colour: whether the program passes its tests.", "coloured_text"
    )
    names = ("response", "token", "sentence")
    outputs = of_one_seed({name: tree.of(recipe_row(PAPER, name)) for name in names})
    answers = {name: _generations(output) for name, output in outputs.items()}
    for figure in (question, program):
        figure.missing = [name for name in names if not answers.get(name)]
    present = {name: rows for name, rows in answers.items() if rows}
    if present:
        question.blocks = _compared(present, "alpaca", _world(tree, next(iter(outputs.values())).seed))
        program.blocks = _compared(present, "mbpp_base", None)
    return [question, program]


def _generations(output: StageOutput) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["benchmark"], str(row["id"])): row for row in output.generations if "response" in row}


def _world(tree: ResultTree, seed: int) -> Any:
    """Returns the testbed's world behind the results of a seed, None for real data."""
    from tasks.running.loading import load_world

    folder = tree.data(data_set(PAPER), seed)
    return load_world(folder) if (folder / "data.json").exists() else None


def _compared(
    answers: Mapping[str, Mapping[tuple[str, str], dict[str, Any]]], benchmark: str, world: Any
) -> list[dict[str, Any]]:
    """Returns the first item to which the policies gave answers that differ, as a block of coloured texts."""
    keys = [key for key in next(iter(answers.values())) if key[0] == benchmark]
    for key in keys:
        rows = {name: found[key] for name, found in answers.items() if key in found}
        texts = {row["response"] for row in rows.values()}
        if len(rows) == len(answers) and len(texts) == len(rows) and all(text.strip() for text in texts):
            shown = [{"name": LABELS[name], **_coloured(row, world)} for name, row in rows.items()]
            prompt = str(next(iter(rows.values()))["prompt"])
            return [{"title": benchmark, "prompt": prompt, "models": shown}]
    return []


def _coloured(row: Mapping[str, Any], world: Any) -> dict[str, Any]:
    """Returns an answer in pieces with the value of each: true clauses, or the whole with whether it is right."""
    text = str(row["response"])
    pieces: Sequence[tuple[str, float | None]] = [(text, _rightness(row))]
    if world is not None and row.get("meta"):
        pieces = [(text[c.start : c.end], c.reward) for c in world.clauses(row["meta"], text)]
    segments = [[i, i + 1, value] for i, (_, value) in enumerate(pieces) if value is not None]
    return {
        "tokens": [piece for piece, _ in pieces],
        "rewards": [value for _, value in pieces],
        "segments": segments,
    }


def _rightness(row: Mapping[str, Any]) -> float | None:
    return None if row.get("right") is None else 1.0 if row["right"] else -1.0
