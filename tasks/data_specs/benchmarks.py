"""Benchmarks of real data: dialogues with a baseline's answers, code, tasks of lm-evaluation-harness.

Writes benchmarks/<name>.jsonl, functions.<column>.jsonl and tasks/<column>.jsonl (every row that a task reads, in the
columns of its own data set, with its data set, configuration and split); data.json says how many items there are of how
many. A row that cannot be used stops the stage, before anything is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.data.schemas import Record
from rlhf_core.data.selection import HubSet
from rlhf_core.data.sources import DirectorySource, Source, load_split
from rlhf_core.errors import DataError
from rlhf_core.evaluation import livecodebench
from rlhf_core.evaluation.benchmark_names import CODE_BENCHMARKS, OFFICIAL_ITEMS, OFFICIAL_ROWS, REFERENCE_CATEGORIES
from rlhf_core.evaluation.evalplus import asked
from rlhf_core.evaluation.harness.rows import FORMS, in_columns
from tasks.data_specs.data_sets import Sets, benchmark_row, data_directory
from tasks.params.data import RealSpec

#: Chat templates with a turn of the system.
SYSTEM_TURNS = ("phi3", "llama3")


def dialogue_benchmarks(spec: RealSpec, source: Source) -> tuple[Sets, dict[str, Any]]:
    """Returns the benchmarks that a spec names, and {name: rows, of, and whose answers are the baseline}."""
    sets: Sets = {}
    facts: dict[str, Any] = {}
    for benchmark, name in spec.benchmarks.items():
        rows = source.load(name, "test")
        if benchmark in spec.references:
            rows = _with_answers(rows, source, spec.references[benchmark], name)
        items = [_item(benchmark, row, name, number) for number, row in enumerate(rows, start=1)]
        sets[f"benchmarks/{benchmark}"] = items[: spec.benchmark_rows]
        facts[benchmark] = {
            "set": name,
            "rows": len(items[: spec.benchmark_rows]),
            "of": spec.official_items.get(benchmark, OFFICIAL_ITEMS.get(benchmark)),
            "baseline": sorted({str(row["reference_generator"]) for row in rows if row.get("reference_generator")}),
        }
    return sets, facts


def _with_answers(rows: Sequence[Record], source: Source, answers: str, name: str) -> list[Record]:
    """Returns the rows of a benchmark with the answers of another set as references."""
    found = {row["question_id"]: row for row in source.load(answers, "test", "model_output")}
    whose = {"reference": "output", "reference_generator": "generator"}
    return [
        {**row, **{ours: found[row["id"]][theirs] for ours, theirs in whose.items()}} if row["id"] in found else row
        for row in rows
    ]


def _item(benchmark: str, row: Record, name: str, number: int) -> Record:
    """Returns an item of a benchmark, of a row of a benchmark or of a prompt with the baseline's response.

    Raises:
        DataError: a row without a prompt, or without the reference answer that the benchmark needs.
    """
    turns = row["turns"] if "turns" in row else [row["prompt"]] if "prompt" in row else None
    if turns is None:
        raise DataError(
            "the row has neither 'turns' nor 'prompt'", file=f"{name}.test", row=number, field="turns",
            remedy="Give rows of a benchmark (id, category, turns, reference) or prompts with a response",
        )  # fmt: skip
    reference = row.get("reference", row.get("response"))
    answers = [reference] if isinstance(reference, str) else list(reference or ())
    needed = benchmark != "mtbench" or row["category"] in REFERENCE_CATEGORIES
    if needed and len(answers) < len(turns):
        raise DataError(
            f"'{row['id']}' has {len(answers)} reference answers for {len(turns)} turns", file=f"{name}.test",
            row=number, field="reference",
            remedy="Give the baseline's answer in the row, or name the set with the answers under 'references'",
        )  # fmt: skip
    if benchmark != "mtbench":
        return benchmark_row(row, turns, answers, [{} for _ in turns])
    item = benchmark_row(row, turns, ["" for _ in turns], [{} for _ in turns])
    return {**item, "category": row["category"], **({"references": answers} if needed else {})}


def code_benchmarks(spec: RealSpec, source: Source) -> tuple[Sets, dict[str, Any]]:
    """Returns the questions whose answers are programs, and {column: set, rows, of}.

    Raises:
        DataError: a row without the tests that its column runs, or no question in LiveCodeBench's window.
    """
    sets: Sets = {}
    facts: dict[str, Any] = {}
    for column, name in spec.code.items():
        if column == "livecode":
            sets[f"functions.{column}"], facts[column] = live_questions(spec, source, name)
            continue
        items = [asked(row) for row in source.load(name, "test", "code")]
        tests = "plus_tests" if column.endswith("_plus") else "tests"
        for number, item in enumerate(items, start=1):
            if not item[tests]:
                raise DataError(
                    f"'{item['id']}' has no {tests}, which {column} runs", file=f"{name}.test", row=number, field=tests,
                    remedy="Name a set of EvalPlus, such as mbpp_plus",
                )  # fmt: skip
        sets[f"functions.{column}"] = [
            {**{key: item[key] for key in item if key != "plus_tests"}, "tests": item[tests]} for item in items
        ]
        facts[column] = {"set": name, "rows": len(items), "of": CODE_BENCHMARKS[column]}
    return sets, facts


def live_questions(spec: RealSpec, source: Source, name: str) -> tuple[list[Record], dict[str, Any]]:
    """Returns the questions of LiveCodeBench in the spec's window, and {set, rows, of, window if there is one}.

    Raises:
        DataError: a row that is not in LiveCodeBench's columns or has no tests, an id twice, or an empty window.
    """
    if isinstance(source, DirectorySource):
        path = source.file(name, "test")
        rows, file = read_jsonl(path), path.name
    else:
        hub_set = spec.sets[name]
        rows, file = [dict(row) for row in load_split(hub_set, hub_set.splits["test"])], f"{name}.test"
    first, last = spec.window
    items: dict[str, Record] = {}
    for number, row in enumerate(rows, start=1):
        item, held = livecodebench.asked(row, file, number, system_turn=spec.template in SYSTEM_TURNS)
        if item["id"] in items:
            raise DataError(
                f"'{item['id']}' is there twice", file=file, row=number, field="question_id",
                remedy="Name each release's files once: release v5 is test.jsonl to test5.jsonl",
            )  # fmt: skip
        if (first is None or first <= held) and (last is None or held <= last):
            items[item["id"]] = item
    if not items:
        span = f"from {first or 'the first'} to {last or 'the last'}"
        raise DataError(
            f"none of {len(rows)} questions is in livecode_window ({span})",
            file=file, field="contest_date", remedy="Widen the window, or name the files of a later release",
        )  # fmt: skip
    facts: dict[str, Any] = {"set": name, "rows": len(items), "of": CODE_BENCHMARKS["livecode"]}
    if first or last:
        facts |= {"of": None, "window": [each and each.isoformat() for each in (first, last)]}
    return list(items.values()), facts


# --- lm-evaluation-harness ---------------------------------------------------------------------------------------


def harness_rows(spec: RealSpec) -> tuple[Sets, dict[str, Any]]:
    """Returns the rows of the tasks that a spec names, and {column: the task, rows, of, and where they are from}."""
    if not spec.tasks:  # the harness is an extra that others do without
        return {}, {}
    from rlhf_core.evaluation.harness.tasks import task_rows

    sets: Sets = {}
    facts: dict[str, Any] = {}
    for column, choice in spec.tasks.items():
        local = choice.rows
        rows_of = hub_rows if local is None else LocalRows(data_directory(spec.directory), local).rows_of
        found, asked = task_rows(choice, rows_of)
        sets[f"tasks/{column}"] = [
            {"data_set": data_set, "configuration": part, "split": split, "row": row}
            for (data_set, part, split), rows in found.items()
            for row in rows
        ]
        official = asked if local is None else OFFICIAL_ROWS.get(choice.task)
        facts[column] = {"task": asdict(choice), "rows": asked, "of": official, "from": local or "hub"}
    return sets, facts


def hub_rows(data_set: str, configuration: str | None, split: str) -> list[Record]:
    """Returns a split of a task's own data set as the hub has it.

    Raises:
        DataError: the hub does not answer, or does not have it.
    """
    return [dict(row) for row in load_split(HubSet(data_set, {}, config=configuration), split)]


class LocalRows:
    """Rows of a folder in place of a task's data set: `<name>.<split>.jsonl` or `.jsonl.gz`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.source, self.name = DirectorySource(folder), name
        self._read: dict[tuple[str, str], list[Record]] = {}

    def rows_of(self, data_set: str, configuration: str | None, split: str) -> list[Record]:
        """Returns rows in the columns of a data set.

        Raises:
            DataError: a split that the folder does not have, or a configuration without rows.
        """
        form = FORMS.get(data_set)
        known = self.source.available().get(self.name, ())
        local = split if split in known or form is None else form.splits.get(split, split)
        if (data_set, local) not in self._read:
            path = self.source.file(self.name, local)
            self._read[data_set, local] = in_columns(read_jsonl(path), data_set, path.name)
        rows = self._read[data_set, local]
        if form is None or form.part is None:
            return rows
        chosen = [row for row in rows if row.get(form.part) == configuration]
        if not chosen:
            raise DataError(
                f"no row has {form.part} '{configuration}'", file=f"{self.name}.{local}", field=form.part,
                remedy=f"{data_set} has one configuration for each; give rows of all of them",
            )  # fmt: skip
        return chosen
