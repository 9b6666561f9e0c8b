"""Figures of texts: responses coloured by reward, and their segments; `figures` names them by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf_core.evaluation.fidelity import boundary_scores
from rlhf_core.published.row_map import data_set
from rlhf_core.reasoning.steps import split_steps
from tasks.report.figure_data import Drawing
from tasks.report.outputs import StageOutput, of_one_seed

#: Texts that are shown of each task.
CASES = 2
#: RLMEC's tasks with their titles.
TASKS = {"qa": "Question answering, 7B", "math": "Mathematics, 7B"}
#: Largest distance in characters from the end of one token to the start of the next token's text.
LOOK_AHEAD = 8

Block = dict[str, Any]


def _by_id(output: StageOutput, file: str) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in output.rows(file)}


def examples(drawing: Drawing, *names: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the example responses of reward models by name and id, of the first seed that all of them have."""
    found = of_one_seed({name: drawing.runs(f"reward_model/{name}") for name in names})
    return {name: rows for name, output in found.items() if (rows := _by_id(output, "examples.jsonl"))}


def coloured_examples(drawing: Drawing) -> Iterator[Block]:
    """Yields the same responses under several reward models, a repetition among them."""
    labels = {line.name: line.label for line in drawing.lines()}
    models = examples(drawing, *labels)
    first = next(iter(models.values()), {})
    for kind, title in (("normal", "Normal text"), ("repetition", "Text with repetition")):
        shared = (i for i, row in first.items() if row["kind"] == kind and all(i in rows for rows in models.values()))
        if (example := next(shared, None)) is not None:
            shown = [
                {"name": labels[name], **{key: rows[example][key] for key in ("tokens", "rewards", "segments")}}
                for name, rows in models.items()
            ]
            yield {"title": title, "prompt": first[example]["prompt"], "models": shown}


def segmentation(drawing: Drawing) -> Iterator[Block]:
    """Yields the true clause boundaries of a response beside entropy boundaries."""
    rows = next((own for line in drawing.lines() for own in examples(drawing, line.name).values()), {})
    options = drawing.spec.options
    pool = [row for row in rows.values() if row["kind"] == options["example"]]
    for row in pool[options["number"] :][:1]:
        response, spans, true = row["response"], token_spans(row["tokens"], row["response"]), row["true_clauses"]
        found = [(spans[start][0], spans[end - 1][1]) for start, end, _ in row["segments"]]
        yield {
            "prompt": row["prompt"],
            "true": [{"text": response[s:e], "kind": kind, "reward": reward} for s, e, kind, reward in true],
            "found": [{"text": response[s:e]} for s, e in found],
            # a token may carry the space before its word
            "f1": boundary_scores([[s for s, _ in found]], [[s for s, *_ in true]], tolerance=1)["f1"],
        }


def token_spans(tokens: Sequence[str], response: str) -> list[tuple[int, int]]:
    """Returns half-open character spans of the tokens in the response; together they cover it.

    A token that is not at its place is looked for a few characters on (a byte of a longer character, a space that the
    first token lost); one that is not there at all (an end-of-text mark) gets an empty span.
    """
    starts: list[int | None] = []
    position = 0
    for token in tokens:
        core = token if response.startswith(token, position) else token.strip()
        place = response.find(core, position, position + len(core) + LOOK_AHEAD) if core else -1
        starts.append(place if place >= 0 else None)
        position = place + len(core) if place >= 0 else position
    ends = [len(response)]
    for start in starts[:0:-1]:
        ends.append(ends[-1] if start is None else start)
    ends.reverse()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def answers_side_by_side(drawing: Drawing) -> Iterator[Block]:
    """Yields the first item of a benchmark to which the policies gave answers that differ, in coloured pieces."""
    benchmark = drawing.spec.options["benchmark"]
    outputs = of_one_seed({line.label: drawing.runs(line.name) for line in drawing.lines()})
    answers = {label: found for label, output in outputs.items() if (found := _answers(output))}
    world = _world(drawing, next(iter(outputs.values())).seed) if answers and benchmark == "alpaca" else None
    for key in (key for key in next(iter(answers.values()), {}) if key[0] == benchmark):
        rows = {label: found[key] for label, found in answers.items() if key in found}
        texts = {row["response"] for row in rows.values()}
        if len(rows) == len(answers) and len(texts) == len(rows) and all(text.strip() for text in texts):
            shown = [_text(label, _pieces(row, world)) for label, row in rows.items()]
            yield {"title": benchmark, "prompt": str(next(iter(rows.values()))["prompt"]), "models": shown}
            return


def _answers(output: StageOutput, has: str = "response") -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the answers that have a field, by benchmark and id."""
    return {(row["benchmark"], str(row["id"])): row for row in output.generations if has in row}


def _world(drawing: Drawing, seed: int) -> Any:
    """Returns the testbed's world behind the results of a seed, None for real data."""
    from tasks.running.loading import load_world

    folder = drawing.tree.data(data_set(drawing.paper), seed)
    return load_world(folder) if (folder / "data.json").exists() else None


def _pieces(row: Mapping[str, Any], world: Any) -> list[tuple[str, float | None]]:
    """Returns an answer in pieces with the value of each: true clauses, or the whole with whether it is right."""
    text = str(row["response"])
    if world is not None and row.get("meta"):
        return [(text[c.start : c.end], c.reward) for c in world.clauses(row["meta"], text)]
    return [(text, None if row.get("right") is None else 1.0 if row["right"] else -1.0)]


def _text(name: str, pieces: Sequence[tuple[str, float | None]]) -> Block:
    """Returns a text in pieces, each a segment where it has a value."""
    segments = [[i, i + 1, value] for i, (_, value) in enumerate(pieces) if value is not None]
    return {"name": name, "tokens": [p for p, _ in pieces], "rewards": [v for _, v in pieces], "segments": segments}


def highest_paid_rollouts(drawing: Drawing) -> Iterator[Block]:
    """Yields, for each setting, the highest paid of a row's last rollouts with what its tokens were paid."""
    (line,) = drawing.lines()
    for prefix, setting in drawing.spec.options["settings"].items():
        for output in list(drawing.runs(f"{prefix}{line.name}").values())[:1]:
            rows = output.rows("rollouts.jsonl")
            last = [row for row in rows if row["step"] == max(r["step"] for r in rows)]
            row = max(last, key=lambda row: sum(row["rewards"]), default=None)
            if row is not None:
                true = "" if row["true_reward"] is None else f", true reward {row['true_reward']:.2f}"
                model = {"name": line.label, "tokens": row["tokens"], "rewards": row["rewards"], "segments": []}
                title = f"{setting}: paid {sum(row['rewards']):.2f}{true}"
                yield {"title": title, "prompt": row["prompt"], "models": [model]}


def coloured_credit(drawing: Drawing) -> Iterator[Block]:
    """Yields the same wrong solutions with the credit that each method gives to their tokens."""
    for task, title in TASKS.items():
        outputs = of_one_seed({line.label: drawing.runs(f"{task}-{line.name}") for line in drawing.lines()})
        found = {label: rows for label, output in outputs.items() if (rows := _by_id(output, "credit.jsonl"))}
        first = next(iter(found.values()), {})
        for example in [name for name in first if all(name in rows for rows in found.values())][:CASES]:
            own = {label: rows[example] for label, rows in found.items()}
            models = [
                {"name": label, "tokens": row["tokens"], "rewards": row.get("unclipped") or row["credit"],
                 "segments": [], "marked": row["mistaken"]}
                for label, row in own.items()
            ]  # fmt: skip
            note = f"Corrected: {' '.join(split_steps(first[example]['rewrite']))}"
            yield {"title": title, "prompt": first[example]["prompt"], "models": models, "note": note}


def cases(drawing: Drawing) -> Iterator[Block]:
    """Yields answers before and after training, to questions that the first row came to answer right."""
    task, before, lines = drawing.spec.options["task"], drawing.labels["before"], drawing.lines()
    runs = {before: drawing.runs(f"rlmec-{task}")} | {line.label: drawing.runs(f"{task}-{line.name}") for line in lines}
    answers = {label: _answers(output, "extracted") for label, output in of_one_seed(runs).items()}
    wrong, after = answers.get(before, {}), answers.get(lines[0].label, {})
    changed = [key for key, row in wrong.items() if not row["right"] and key in after and after[key]["right"]]
    changed.sort(key=lambda key: after[key].get("first_error") is not None)
    for key in changed[:CASES]:
        models = [_by_steps(label, rows[key]) for label, rows in answers.items() if key in rows]
        yield {"title": f"{key[0]}, {key[1]}", "prompt": str(wrong[key]["prompt"]), "models": models}


def _by_steps(name: str, row: Mapping[str, Any]) -> Block:
    """Returns a solution by its steps: right ones before the first error, wrong from there on, whatever answer they
    reach."""
    steps = [f"{step}\n" for step in split_steps(str(row["response"]))] or [str(row["response"])]
    first = row.get("first_error", None if row["right"] else 0)
    worth = [1.0 if first is None or i < int(first) else -1.0 for i in range(len(steps))]
    name = f"{name}: {'right' if row['right'] else 'wrong'}"
    return {"name": name, "tokens": steps, "rewards": worth, "segments": []}
