"""Figures of texts: responses coloured by reward, and their segments; `figures` names them by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.evaluation.fidelity import boundary_scores
from rlhf_core.published.row_map import data_set
from rlhf_core.reasoning.steps import split_steps
from tasks.report.figure_data import FigureData, Request, token_spans
from tasks.report.outputs import ResultTree, StageOutput, of_one_seed

#: Texts that are shown of each task.
CASES = 2
#: RLMEC's tasks with their titles.
TASKS = {"qa": "Question answering, 7B", "math": "Mathematics, 7B"}


def examples(tree: ResultTree, paper: str, *names: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the example responses of reward models by name and id, of the first seed that all of them have."""
    found = of_one_seed({name: tree.outputs(paper, "reward_model", name) for name in names})
    return {name: {row["id"]: row for row in output.rows("examples.jsonl")} for name, output in found.items()}


def coloured_examples(figure: FigureData, request: Request) -> None:
    """Shows the same responses under several reward models, a repetition among them."""
    models = examples(request.tree, request.paper, *(line.name for line in request.lines))
    figure.missing = [f"reward_model/{line.name}" for line in request.lines if not models.get(line.name)]
    labels = {line.name: line.label for line in request.lines}
    present = {name: models[name] for name in labels if models.get(name)}
    if not present:
        return
    first, shared = next(iter(present.values())), set.intersection(*map(set, present.values()))
    for kind, title in (("normal", "Normal text"), ("repetition", "Text with repetition")):
        example = next((i for i, row in first.items() if row["kind"] == kind and i in shared), None)
        if example is not None:
            shown = [
                {"name": labels[name], **{key: rows[example][key] for key in ("tokens", "rewards", "segments")}}
                for name, rows in present.items()
            ]
            figure.blocks.append({"title": title, "prompt": first[example]["prompt"], "models": shown})


def segmentation(figure: FigureData, request: Request) -> None:
    """Shows the true clause boundaries of a response beside entropy boundaries."""
    names, options = ("cutoff-1_5", "segment"), request.spec.options
    found = examples(request.tree, request.paper, *names)
    source = next((name for name in names if found.get(name)), None)
    figure.caption = figure.caption.replace("{source}", str(source))
    pool = [row for row in found.get(str(source), {}).values() if row["kind"] == options["example"]]
    if options["number"] < len(pool):
        figure.blocks = [_segmentation_block(pool[options["number"]])]
    elif source is None:
        figure.missing = [f"reward_model/{names[0]}"]
    elif not pool:
        figure.missing = [f"{options['example']} responses among the reward model's examples"]


def _segmentation_block(row: Mapping[str, Any]) -> dict[str, Any]:
    response = row["response"]
    spans = token_spans(row["tokens"], response)
    found = [(spans[start][0], spans[end - 1][1]) for start, end, _ in row["segments"]]
    true = row["true_clauses"]
    return {
        "prompt": row["prompt"],
        "true": [{"text": response[s:e], "kind": kind, "reward": reward} for s, e, kind, reward in true],
        "found": [{"text": response[s:e]} for s, e in found],
        # a token may carry the space before its word
        "f1": boundary_scores([[s for s, _ in found]], [[s for s, *_ in true]], tolerance=1)["f1"],
    }


def answers_side_by_side(figure: FigureData, request: Request) -> None:
    """Shows the first item of a benchmark to which the policies gave answers that differ, in coloured pieces."""
    benchmark = request.spec.options["benchmark"]
    outputs = of_one_seed({line.name: request.runs(line.name) for line in request.lines})
    answers = {name: {**_answers(output)} for name, output in outputs.items()}
    figure.missing = [line.name for line in request.lines if not answers.get(line.name)]
    present = {line.label: answers[line.name] for line in request.lines if answers.get(line.name)}
    if not present:
        return
    world = _world(request, next(iter(outputs.values())).seed) if benchmark == "alpaca" else None
    for key in (key for key in next(iter(present.values())) if key[0] == benchmark):
        rows = {label: found[key] for label, found in present.items() if key in found}
        texts = {row["response"] for row in rows.values()}
        if len(rows) == len(present) and len(texts) == len(rows) and all(text.strip() for text in texts):
            shown = [{"name": label, **_in_pieces(row, world)} for label, row in rows.items()]
            prompt = str(next(iter(rows.values()))["prompt"])
            figure.blocks = [{"title": benchmark, "prompt": prompt, "models": shown}]
            return


def _answers(output: StageOutput, has: str = "response") -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the answers that have a field, by benchmark and id."""
    return {(row["benchmark"], str(row["id"])): row for row in output.generations if has in row}


def _world(request: Request, seed: int) -> Any:
    """Returns the testbed's world behind the results of a seed, None for real data."""
    from tasks.running.loading import load_world

    folder = request.tree.data(data_set(request.paper), seed)
    return load_world(folder) if (folder / "data.json").exists() else None


def _in_pieces(row: Mapping[str, Any], world: Any) -> dict[str, Any]:
    """Returns an answer in pieces with the value of each: true clauses, or the whole with whether it is right."""
    text = str(row["response"])
    right = None if row.get("right") is None else 1.0 if row["right"] else -1.0
    pieces: Sequence[tuple[str, float | None]] = [(text, right)]
    if world is not None and row.get("meta"):
        pieces = [(text[c.start : c.end], c.reward) for c in world.clauses(row["meta"], text)]
    segments = [[i, i + 1, value] for i, (_, value) in enumerate(pieces) if value is not None]
    return {
        "tokens": [piece for piece, _ in pieces],
        "rewards": [value for _, value in pieces],
        "segments": segments,
    }


def highest_paid_rollouts(figure: FigureData, request: Request) -> None:
    """Shows, for each setting, the highest paid of a row's last rollouts with what its tokens were paid."""
    (line,) = request.lines
    for prefix, title in request.spec.options["settings"].items():
        for output in list(figure.needs(f"{prefix}{line.name}", request.runs(f"{prefix}{line.name}")).values())[:1]:
            rows = output.rows("rollouts.jsonl")
            last = [row for row in rows if row["step"] == max(r["step"] for r in rows)]
            for row in sorted(last, key=lambda row: -sum(row["rewards"]))[:1]:
                true = "" if row["true_reward"] is None else f", true reward {row['true_reward']:.2f}"
                model = {"name": line.label, "tokens": row["tokens"], "rewards": row["rewards"], "segments": []}
                title = f"{title}: paid {sum(row['rewards']):.2f}{true}"
                figure.blocks.append({"title": title, "prompt": row["prompt"], "models": [model]})


def coloured_credit(figure: FigureData, request: Request) -> None:
    """Shows the same wrong solutions with the credit that each method gives to their tokens."""
    for task, title in TASKS.items():
        outputs = of_one_seed({line.name: request.runs(f"{task}-{line.name}") for line in request.lines})
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for line in request.lines:
            rows = outputs[line.name].rows("credit.jsonl") if line.name in outputs else []
            if rows:
                found[line.label] = {row["id"]: row for row in rows}
            else:
                figure.missing.append(f"{task}-{line.name}")
        first = next(iter(found.values()), {})
        for example in [name for name in first if all(name in rows for rows in found.values())][:CASES]:
            models = [
                {
                    "name": label,
                    "tokens": rows[example]["tokens"],
                    "rewards": rows[example].get("unclipped") or rows[example]["credit"],
                    "segments": [],
                    "marked": rows[example]["mistaken"],
                }
                for label, rows in found.items()
            ]
            note = f"Corrected: {' '.join(split_steps(first[example]['rewrite']))}"
            block = {"title": title, "prompt": first[example]["prompt"], "models": models, "note": note}
            figure.blocks.append(block)


def cases(figure: FigureData, request: Request) -> None:
    """Shows answers before and after training, to questions that the first row came to answer right."""
    task, before = request.spec.options["task"], request.labels["before"]
    runs = {before: request.runs(f"rlmec-{task}")}
    runs |= {line.label: request.runs(f"{task}-{line.name}") for line in request.lines}
    figure.missing = [f"{task}: {label}" for label, outputs in runs.items() if not outputs]
    answers = {label: _answers(output, "extracted") for label, output in of_one_seed(runs).items()}
    wrong, after = answers.get(before, {}), answers.get(request.lines[0].label, {})
    changed = [key for key, row in wrong.items() if not row["right"] and key in after and after[key]["right"]]
    changed.sort(key=lambda key: after[key].get("first_error") is not None)
    for key in changed[:CASES]:
        models = [_by_steps(label, rows[key]) for label, rows in answers.items() if key in rows]
        figure.blocks.append({"title": f"{key[0]}, {key[1]}", "prompt": str(wrong[key]["prompt"]), "models": models})


def _by_steps(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a solution by its steps: right ones before the first error, wrong from there on, whatever answer they
    reach."""
    steps = [f"{step}\n" for step in split_steps(str(row["response"]))] or [str(row["response"])]
    first = row.get("first_error", None if row["right"] else 0)
    worth = [1.0 if first is None or i < int(first) else -1.0 for i in range(len(steps))]
    name = f"{name}: {'right' if row['right'] else 'wrong'}"
    return {"name": name, "tokens": steps, "rewards": worth, "segments": []}
