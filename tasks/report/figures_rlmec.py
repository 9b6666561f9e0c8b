"""Figures 3 to 5 and the case studies (Tables 8 to 10) of RLMEC, and credit fidelity beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.published.row_map import RecipeRow, recipe_row
from rlhf_core.reasoning.steps import split_steps
from rlhf_core.testbed.oracle import Steps, kept_errors
from tasks.report.claims import paper_claims_figure
from tasks.report.figure_data import (
    FigureData,
    Panel,
    curve_series,
    mean_series,
    metric_bars,
    metric_by_seed,
    published_figure,
    table_line,
)
from tasks.report.outputs import ResultTree, StageOutput, mean_and_standard_error, of_one_seed

TASKS = {"qa": "Question answering, 7B", "math": "Mathematics, 7B"}
LABELS = {"rlmec": "RLMEC", "rft": "RFT", "dpo": "DPO", "ppo-a2c": "PPO A2C", "vanilla-ppo": "Vanilla PPO"}
#: Palette slots; a method keeps its colour in every figure.
COLOURS = {name: slot for slot, name in enumerate(LABELS)}
BACKBONE = "Before training"
BACKBONE_COLOUR = len(LABELS)
#: Steps between the first error and the final answer that have a bar of their own.
FARTHEST = 4
#: Measures of a row's credit: name behind `credit_` or `fidelity/`, and what it is called.
CREDIT = {"auc": "AUC", "auc_within": "AUC within", "precision": "Precision", "recall": "Recall"}
#: The generative reward model's probabilities, whose order clipping takes from tokens it holds to be right.
UNCLIPPED, UNCLIPPED_COLOUR = "RLMEC before clipping", 6
GROUND_TRUTH = "GT (ground truth)"
#: Refiners of wrong solutions in Figure 4, and the metrics of a generative reward model that measure them.
REFINED = {
    "TM (teacher)": ("teacher_edit_distance", "teacher_rewrite_accuracy"),
    "GRM (generative reward model)": ("edit_distance", "rewrite_accuracy"),
    GROUND_TRUTH: ("ground_truth_edit_distance", ""),
}
CASES = 2
#: Data sets behind the tasks.
DATA = {"qa": "questions", "math": "mathematics"}
SIZES = ("", "-13b")


def figures(tree: ResultTree) -> list[FigureData]:
    """Returns all figures in the order of the page."""
    return [
        paper_claims_figure("rlmec", tree),
        training_accuracy(tree),
        rewriting(tree),
        first_error_positions(tree),
        coloured_rewards(tree),
        cases(tree, "qa", "9", ("rlmec", "rft", "dpo", "ppo-a2c")),
        cases(tree, "math", "10", ("rlmec", "rft", "ppo-a2c")),
        fidelity(tree),
        credit_fidelity(tree),
        kept_wrong_steps(tree),
    ]


def _runs(tree: ResultTree, task: str, method: str) -> dict[int, StageOutput]:
    return tree.of(recipe_row("rlmec", f"{task}-{method}"))


def _before(tree: ResultTree, task: str) -> dict[int, StageOutput]:
    return tree.of(recipe_row("rlmec", f"rlmec-{task}"))


def training_accuracy(tree: ResultTree) -> FigureData:
    """Returns Figure 3: accuracy on training questions over training steps."""
    figure = published_figure(
        "rlmec/3",
        "Greedy answers to the first questions of the training set, without smoothing; means over worlds, the band is "
        "one standard error. The paper draws question answering.",
    )
    for task, title in TASKS.items():
        panel = Panel(title, "training step", "accuracy on training questions, %", [])
        for method in ("rlmec", "rft", "dpo"):
            outputs = figure.needs(f"{task}-{method}", _runs(tree, task, method))
            panel.series += curve_series(LABELS[method], outputs, "train_accuracy", colour=COLOURS[method])
        figure.panels.append(panel)
    return figure


def rewriting(tree: ResultTree) -> FigureData:
    """Returns Figure 4: how much is edited, and how often the result is right."""
    figure = published_figure(
        "rlmec/4",
        "Wrong solutions to held-out questions: tokens edited where both rewrites are right, and the share of rewrites "
        "that reach the right answer. Ground truths are right by definition; their distance is over wrong solutions "
        "whose teacher rewrite is accepted. Means over worlds with one standard error.",
    )
    models = {task: tree.outputs("rlmec", "generative_reward_model", task) for task in TASKS}
    figure.missing = [f"generative_reward_model/{task}" for task, outputs in models.items() if not outputs]
    for place, (title, unit) in enumerate((("Edit distance", "tokens"), ("Right rewrites", "share"))):
        panel = Panel(title, "", unit, [])
        for slot, (label, metrics) in enumerate(REFINED.items()):
            sources = models
            if label == GROUND_TRUTH:
                sources = {task: tree.outputs("shared", "teacher", f"rlmec-{task}") for task in TASKS}
            found = {TASKS[task]: metric_by_seed(outputs, metrics[place]) for task, outputs in sources.items()}
            if not metrics[place]:
                found = {TASKS[task]: (1.0, None) for task, outputs in models.items() if outputs}
            panel.series += mean_series(label, found, colour=slot, style="bars")
        figure.panels.append(panel)
    return figure


def error_distances(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the share of wrong solutions by how many steps lie between their first error and their final answer.

    Args:
        rows: generations with `right`, `steps` and `first_error`.

    Returns:
        {'0': ..., '4+': ...}; empty without a wrong solution whose first error is known.
    """
    wrong = [row for row in rows if row.get("right") is False and row.get("first_error") is not None]
    names = [*map(str, range(FARTHEST)), f"{FARTHEST}+"]
    distances = [max(0, int(row["steps"]) - 1 - int(row["first_error"])) for row in wrong]
    return {name: sum(min(d, FARTHEST) == i for d in distances) / len(wrong) for i, name in enumerate(names) if wrong}


def first_error_positions(tree: ResultTree) -> FigureData:
    """Returns Figure 5: how far before the final answer the first error lies."""
    figure = published_figure(
        "rlmec/5",
        "Wrong solutions to the test questions by the steps between the first wrong one and the final answer: 0 is the "
        "answer itself. The testbed knows which step is wrong. Bars are means over worlds with one standard error.",
    )
    for task, title in TASKS.items():
        panel = Panel(title, "steps from the first error to the answer", "share of wrong solutions", [])
        drawn = {BACKBONE: (BACKBONE_COLOUR, _before(tree, task))}
        drawn |= {LABELS[name]: (COLOURS[name], _runs(tree, task, name)) for name in ("rlmec", "rft", "dpo", "ppo-a2c")}
        for label, (colour, outputs) in drawn.items():
            found = [shares for out in outputs.values() if (shares := error_distances(out.generations))]
            if not found:
                figure.missing.append(f"{task}: {label}")
                continue
            means = {name: mean_and_standard_error([shares[name] for shares in found]) for name in found[0]}
            panel.series += mean_series(label, means, colour=colour, style="bars")
        figure.panels.append(panel)
    return figure


def _block(title: str, prompt: str, models: list[dict[str, Any]]) -> dict[str, Any]:
    return {"title": title, "prompt": prompt, "models": models}


def coloured_rewards(tree: ResultTree) -> FigureData:
    """Returns Table 8: the same wrong solution under RLMEC, PPO A2C and vanilla PPO."""
    figure = FigureData(
        key="table-8",
        title="Table 8. The comparison of the reward of the generated solution from different methods",
        caption="Wrong solutions of the policy before training. RLMEC: the token's probability less one half, without "
        "clipping; PPO A2C: the advantage that its critic estimates from the terminal reward; vanilla PPO: the reward "
        "of the whole solution on every token. Each on its own scale, centred at 0. Underlined: tokens that the true "
        "correction replaces or deletes.",
        kind="coloured_text",
    )
    for task, title in TASKS.items():
        found: dict[str, dict[str, Any]] = {}
        methods = ("rlmec", "ppo-a2c", "vanilla-ppo")
        outputs = of_one_seed({method: _runs(tree, task, method) for method in methods})
        for method in methods:
            rows = outputs[method].rows("credit.jsonl") if method in outputs else []
            if not rows:
                figure.missing.append(f"{task}-{method}")
            else:
                found[method] = {row["id"]: row for row in rows}
        shared = set.intersection(*(set(rows) for rows in found.values())) if found else set()
        for example in [name for name in next(iter(found.values()), {}) if name in shared][:CASES]:
            models = [
                {
                    "name": LABELS[method],
                    "tokens": rows[example]["tokens"],
                    "rewards": rows[example].get("unclipped") or rows[example]["credit"],
                    "segments": [],
                    "marked": rows[example]["mistaken"],
                }
                for method, rows in found.items()
            ]
            kept = next(iter(found.values()))[example]
            note = " ".join(split_steps(kept["rewrite"]))
            figure.blocks.append(_block(title, kept["prompt"], models) | {"note": f"Corrected: {note}"})
    return figure


def _by_steps(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a solution by its steps: right ones before the first error, wrong from there on, whatever answer they
    reach."""
    steps = [f"{step}\n" for step in split_steps(str(row["response"]))] or [str(row["response"])]
    first = row.get("first_error", None if row["right"] else 0)
    worth = [1.0 if first is None or i < int(first) else -1.0 for i in range(len(steps))]
    return {
        "name": f"{name}: {'right' if row['right'] else 'wrong'}",
        "tokens": steps,
        "rewards": worth,
        "segments": [],
    }


def cases(tree: ResultTree, task: str, number: str, methods: Sequence[str]) -> FigureData:
    """Returns tables 9 and 10: answers before and after training, to questions that RLMEC came to answer right."""
    titles = {"9": "question-answering", "10": "mathematical"}
    figure = FigureData(
        key=f"table-{number}",
        title=f"Table {number}. The case study for {titles[number]} tasks",
        caption="Questions of the test sets that the model answers wrong before training and right after RLMEC, first "
        "seed; first those whose steps are right, too. Steps from the first wrong one on are coloured as costs, the "
        "others as gains.",
        kind="coloured_text",
    )
    drawn = {BACKBONE: _before(tree, task)} | {LABELS[name]: _runs(tree, task, name) for name in methods}
    figure.missing = [f"{task}: {label}" for label, outputs in drawn.items() if not outputs]
    answers = {
        label: {(row["benchmark"], str(row["id"])): row for row in output.generations if "extracted" in row}
        for label, output in of_one_seed(drawn).items()
    }
    before, after = answers.get(BACKBONE, {}), answers.get(LABELS["rlmec"], {})
    changed = [key for key, row in before.items() if not row["right"] and key in after and after[key]["right"]]
    changed.sort(key=lambda key: after[key].get("first_error") is not None)
    for key in changed[:CASES]:
        models = [_by_steps(label, rows[key]) for label, rows in answers.items() if key in rows]
        figure.blocks.append(_block(f"{key[0]}, {key[1]}", str(before[key]["prompt"]), models))
    return figure


def _credit(tree: ResultTree, task: str) -> dict[str, tuple[RecipeRow, dict[int, StageOutput], str]]:
    """{label: (row, its runs, what its metrics begin with)} of everything that credits the tokens of a task."""
    model = RecipeRow(task, "rlmec", "generative_reward_model")
    found = {UNCLIPPED: (model, tree.of(model), "fidelity/")}
    rows = {name: RecipeRow(f"{task}-{name}", "rlmec", "policy") for name in ("rlmec", "ppo-a2c", "vanilla-ppo")}
    return found | {LABELS[name]: (row, tree.of(row), "credit_") for name, row in rows.items()}


def _measures(label: str) -> dict[str, str]:
    """Returns the measures of a row's credit; before clipping there is no sign, only an order."""
    return {metric: name for metric, name in CREDIT.items() if label != UNCLIPPED or metric.startswith("auc")}


def fidelity(tree: ResultTree) -> FigureData:
    """Returns bars of precision and recall with which negative credit finds wrong tokens."""
    figure = FigureData(
        key="fidelity",
        title="Token-reward fidelity",
        caption="Wrong solutions with their true minimal edit: a token is mistaken where the edit replaces or deletes "
        "it. AUC is the chance that a mistaken token has less credit than another (.5: none is told apart), over all "
        "solutions and within one; precision and recall are those of credit below 0. Clipping ties the tokens that are "
        "held to be right, hence the AUC before it. Means over worlds with one standard error.",
    )
    for task, title in TASKS.items():
        panel = Panel(title, "", "share of tokens, or chance", [])
        for label, (row, outputs, prefix) in _credit(tree, task).items():
            colour = next((COLOURS[name] for name, method in LABELS.items() if method == label), UNCLIPPED_COLOUR)
            measures = {f"{prefix}{metric}": name for metric, name in _measures(label).items()}
            bars = metric_bars(label, outputs, measures, colour)
            if not bars:
                figure.missing.append(row.name if label != UNCLIPPED else f"generative_reward_model/{task}")
            panel.series += bars
        figure.panels.append(panel)
    return figure


def credit_fidelity(tree: ResultTree) -> FigureData:
    """Returns the numbers of the fidelity figure."""
    figure = FigureData(
        key="credit-fidelity",
        title="Token-reward fidelity in numbers",
        caption="As in the figure; before clipping over all wrong samples, else over up to 256 whose rewrite by the "
        "teacher is accepted.",
        kind="table",
    )
    lines = []
    for task in TASKS:
        for label, (row, outputs, prefix) in _credit(tree, task).items():
            if not outputs:
                figure.missing.append(row.name if label != UNCLIPPED else f"generative_reward_model/{task}")
                continue
            own = _measures(label)
            means = [metric_by_seed(outputs, f"{prefix}{metric}") if metric in own else None for metric in CREDIT]
            lines.append(table_line(f"{row.name}, before clipping" if label == UNCLIPPED else row.name, row, means))
    if lines:
        figure.blocks = [{"columns": list(CREDIT.values()), "rows": lines}]
    return figure


def kept_wrong_steps(tree: ResultTree) -> FigureData:
    """Returns the share of accepted rewrites with a right answer that keep a wrong step of the prediction."""
    figure = FigureData(
        key="kept-wrong-steps",
        title="Rewrites that keep a wrong step",
        caption="Accepted rewrites of wrong samples: their answer is right. A kept step is wrong where it stands, as "
        "the testbed knows, and the prediction has it too; imitation learns it. A model that names a later step than "
        "the first wrong one keeps what stands between. Means over worlds with one standard error.",
        kind="table",
    )
    lines = []
    for task, data in DATA.items():
        steps = {seed: _right_steps(tree, data, seed) for seed in tree.seeds}
        for size in SIZES:
            sources = (
                (RecipeRow(f"rlmec-{task}{size}", "shared", "teacher"), "rewrites.jsonl"),
                (RecipeRow(f"{task}{size}", "rlmec", "generative_reward_model"), "grm_rewrites.jsonl"),
            )
            for source, file in sources:
                outputs = figure.needs(f"{source.kind}/{source.name}", tree.of(source))
                found = [_kept_share(output.rows(file), steps[seed]) for seed, output in outputs.items()]
                shares = [share for share in found if share is not None]
                if shares:
                    name = f"{source.kind.replace('_', ' ')} {source.name}"
                    lines.append(table_line(name, source, [mean_and_standard_error(shares)]))
    if lines:
        figure.blocks = [{"columns": ["Keeps a wrong step"], "rows": lines}]
    return figure


def _right_steps(tree: ResultTree, data: str, seed: int) -> dict[str, Steps | None]:
    """Returns the right steps of each question of a data set at a seed, None where they are not known."""
    return {row["id"]: row.get("meta", {}).get("steps") for row in tree.data_rows(data, seed, "questions.jsonl")}


def _kept_share(rows: Sequence[Mapping[str, Any]], steps: Mapping[str, Steps | None]) -> float | None:
    """Returns the share of accepted rewrites with a wrong step of the prediction; None without one whose right steps
    are known."""
    known = [
        bool(kept_errors(right, row["prediction"], row["rewrite"]))
        for row in rows
        if row["accepted"] and (right := steps.get(row["question_id"])) is not None
    ]
    return sum(known) / len(known) if known else None
