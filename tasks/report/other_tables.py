"""The tables of the papers that print no measurements: settings, resources, statistics, prompts and notation.

Each printed value is shown beside this project's: settings of the scale `paper`, counts of the data that the report's
scale prepared, or the words that the code asks with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlhf_core.errors import RecipeError
from rlhf_core.published import printed_tables
from rlhf_core.published.printed_tables import Table
from rlhf_core.reasoning.templates import PAPER, TEACHER
from rlhf_core.recipe import Recipe, parse_recipe
from rlhf_core.rewards.zero_shot import FIGURE_5
from tasks.params.pages import read_settings
from tasks.params.yaml_files import read_mapping
from tasks.report.printed_settings import FOLDER, SCALE, PaperScale, StatedCell, setting_cells
from tasks.running.artifacts import read_jsonl, read_object
from tasks.running.result_digests import exists_or_raise_if_lost

#: Shown where there is nothing of this project's to show.
NOT_PREPARED, NO_ROW = "not prepared at this scale", "no row"
#: Recipes without a reward that learn from wrong solutions, and those that weigh single tokens.
LEARN_FROM_WRONG, WEIGH_TOKENS = ("coh", "dpo", "figa", "imitation"), ("figa", "imitation")


@dataclass(frozen=True)
class OtherTable:
    """A table without measurements.

    Attributes:
        id, title: as printed.
        headings: of the columns behind the row's name.
        rows: (name, cells).
        prompts: texts by name, in the place of rows.
        note: of what is shown.
    """

    id: str
    title: str
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[str, ...]], ...] = ()
    prompts: Mapping[str, str] | None = None
    note: str = ""


def other_tables(root: Path, results: Path, paper: str) -> list[OtherTable]:
    """Returns a paper's tables without measurements, in printed order.

    Args:
        root: with `params/`.
        results: of the scale that the report shows.
        paper: its key.
    """
    found = [table for table in printed_tables.paper(paper).tables if not table.is_result]
    here = (root / "params" / "scales" / SCALE).is_dir()
    made = [_compared(root, results, table) if here else _printed(table) for table in found]
    if paper == "alarm":
        figure = printed_tables.figure("alarm/5")
        words = "a picture, whose text is that of the released code"
        made.append(OtherTable(figure.id, figure.title, prompts={"Template": FIGURE_5}, note=f"Printed as {words}."))
    return [table for table in made if table is not None]


def _printed(table: Table, note: str = "") -> OtherTable | None:
    """Returns a table as printed; None where the registry has no columns of it."""
    if not table.columns:
        return None
    rows = tuple((row.condition, tuple(str(row.values[column.key]) for column in table.columns)) for row in table.rows)
    return OtherTable(table.id, table.title, tuple(column.printed for column in table.columns), rows, note=note)


def _compared(root: Path, results: Path, table: Table) -> OtherTable | None:
    """Returns a table beside this project's values; as printed, with the reason, where settings cannot be read."""
    try:
        return _table(root, results, table)
    except RecipeError as error:
        return _printed(table, f"Not compared: {error}")


def _table(root: Path, results: Path, table: Table) -> OtherTable | None:
    if table.kind == "hyperparameters":
        return _settings(root, table)
    if table.name == "rlmec/1":
        return _methods(root, table)
    if table.name == "rlmec/2":
        return _statistics(results, table)
    if table.name in ("rlmec/5", "rlmec/6"):
        asked = TEACHER if table.name == "rlmec/5" else PAPER
        prompts = {"Error Locating": asked.locate, "Solution Rewriting": asked.rewrite}
        return OtherTable(table.id, table.title, prompts=prompts, note="The words that this project asks with.")
    stated = FOLDER / "tables" / f"{table.paper}_{table.id.removeprefix('Table ')}.yaml"
    return _stated(root, table, stated) if stated.exists() else _printed(table)


def _settings(root: Path, table: Table) -> OtherTable:
    """Returns a table of hyperparameters with the values of the scale `paper` beside each column."""
    ours = {
        cell.stated.table[1:]: cell.shown
        for cell in setting_cells(root, table.paper)
        if cell.stated.table is not None and cell.stated.table[0] == table.id
    }
    headings = tuple(heading for column in table.columns for heading in (column.printed, "scale paper"))
    rows = tuple(
        (
            row.condition,
            tuple(
                text
                for column in table.columns
                for text in (str(row.values[column.key]), ours[row.condition, column.key])
            ),
        )
        for row in table.rows
    )
    return OtherTable(table.id, table.title, headings, rows)


def _stated(root: Path, table: Table, file: Path) -> OtherTable:
    """Returns a table whose own file says of each row what this project has: a cell of a settings map, or words."""
    known = PaperScale(root, table.paper)
    stated = read_mapping(file)

    def shown(cell: object) -> str:
        return str(known.value(StatedCell(**cell))) if isinstance(cell, Mapping) else str(cell)

    printed = {row.condition: str(row.values[table.columns[0].key]) for row in table.rows} if table.columns else {}
    heading = table.columns[0].printed if table.columns else "Meaning"
    rows = tuple(
        (name, (printed.get(name) or str(said["printed"]), shown(said["ours"]))) for name, said in stated.items()
    )
    return OtherTable(table.id, table.title, (heading, "scale paper"), rows)


#: RLMEC's rows by the method that Table 1 prints.
METHODS = {
    "SFT": "qa-sft",
    "RFT": "qa-rft",
    "CoH": "qa-coh",
    "DPO": "qa-dpo",
    "FIGA": "qa-figa",
    "PPO": "qa-vanilla-ppo",
    "RLMEC": "qa-rlmec",
}


def _methods(root: Path, table: Table) -> OtherTable:
    """Returns what each method learns from and by, as printed and as this project's row of it says."""
    known = PaperScale(root, table.paper)
    rows = []
    for row in table.rows:
        name = METHODS.get(row.condition)
        ours = {} if name is None else _traits(parse_recipe(read_settings(known.rows[name].path.under(root)), name))
        cells = [
            text for column in table.columns for text in (str(row.values[column.key]), ours.get(column.key, NO_ROW))
        ]
        rows.append((row.condition, tuple(cells)))
    headings = tuple(heading for column in table.columns for heading in (column.printed, "here"))
    return OtherTable(table.id, table.title, headings, tuple(rows))


def _traits(recipe: Recipe) -> dict[str, str]:
    """Returns whether a row uses negative samples, a reward, supervision of tokens, and which reward model."""
    kind = str(recipe.optimiser["kind"])
    generative = any(part.generative_reward_model for part in recipe.components)
    trained = any(part.reward_model for part in recipe.components)
    rewarded = recipe.kind == "reward"
    told = {
        "NS": rewarded or kind in LEARN_FROM_WRONG,
        "RL": rewarded,
        "TLS": generative or kind in WEIGH_TOKENS,
    }
    return {name: "yes" if holds else "no" for name, holds in told.items()} | {
        "RM": "GEN" if generative else "DIS" if trained else "-"
    }


#: The data and the test set (or `train`) of a printed line of RLMEC's Table 2, by task and name.
DATA_OF = {"Math": "mathematics", "QA": "questions"}
SETS = {"GSM8k": "gsm8k", "MATH": "math", "SVAMP": "svamp", "MM": "mm", "OBQA": "obqa", "ARC": "arc"}


def _statistics(results: Path, table: Table) -> OtherTable:
    """Returns the printed numbers of examples beside those of the data that this scale prepared."""
    rows = []
    for row in table.rows:
        task, split = row.extra["task"], row.extra["split"]
        folder = results / "shared" / "data" / DATA_OF[task] / "result"
        name = SETS.get(row.condition, row.condition.lower())
        count = _trained_on(folder, name) if split == "Train" else _tested_on(folder, name)
        printed = str(row.values["n"])
        rows.append((f"{task}, {split}: {row.condition}", (printed, NOT_PREPARED if count is None else str(count))))
    note = f"Here: rows prepared at scale {results.name}."
    return OtherTable(table.id, table.title, (table.columns[0].printed, "here"), tuple(rows), note=note)


def _tested_on(folder: Path, name: str) -> int | None:
    file = folder / "data.json"
    rows = read_object(file).get("rows", {}) if exists_or_raise_if_lost(file) else {}
    found = rows.get(f"tests/{name}")
    return None if found is None else int(found)


@cache
def _sources(file: Path) -> Counter[str]:
    return Counter(str(row.get("source", "")) for row in read_jsonl(file))


def _trained_on(folder: Path, name: str) -> int | None:
    """Returns the training questions of a set; of mathematics all, of which there is one set."""
    file = folder / "questions.jsonl"
    if not exists_or_raise_if_lost(file):
        return None
    found = _sources(file)
    return found.total() if name == "mathinst" else found.get(name)
