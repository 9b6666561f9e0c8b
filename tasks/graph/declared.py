"""Check of a stage's settings, and of its inputs against its row: `dvc exp run -S` may change the row but not the
stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError
from tasks.graph.check import check_rows, refused
from tasks.graph.items import Argument, Item
from tasks.graph.rows import load_model, load_row, load_selection, row_addresses
from tasks.graph.scale import Scale
from tasks.graph.typed_settings import typed_settings

#: Stages of a row, of a reward model, of a selection.
OF_ROWS = ("policy", "reward_bench", "best_of_n", "second_judge")
OF_MODELS = ("reward_model", "normaliser", "references")
OF_SELECTIONS = ("selection",)


def declared(root: Path, out: Path) -> Item | None:
    """Returns the stage that the graph gives for an output of this repository, None for other outputs and stages.

    Args:
        root: the repository.
        out: `results/<scale>/<paper>/<stage>/<name>[/<seed>]`.
    """
    parts = out.parts
    if len(parts) not in (5, 6) or parts[0] != "results" or not (root / "params.yaml").is_file():
        return None
    _, scale, paper, stage, name, *of_seed = parts
    if not (root / "params" / "scales" / scale).is_dir() or not all(part.isdecimal() for part in of_seed):
        return None
    here, seed = Scale(root, scale), int(of_seed[0]) if of_seed else 0
    items: list[Item] = []
    if stage in OF_ROWS and name in (known := row_addresses(root, paper)):
        items = here.row(load_row(root, paper, known[name]), seed)
    elif stage in OF_MODELS:
        model = load_model(typed_settings(root), out.as_posix(), paper, name)
        items = here.references(model, seed) if stage == "references" else here.reward_model(model, seed)
    elif stage in OF_SELECTIONS:
        items = here.selection(load_selection(typed_settings(root), out.as_posix(), paper, name), seed)
    return next((item for item in items if item.out == out.as_posix()), None)


def check_declared(root: Path, out: Path, given: Mapping[str, Any]) -> None:
    """Refuses a stage of a row that is not valid, or whose row asks for other inputs than the stage is given.

    Args:
        root: the repository.
        out: the stage's output.
        given: its arguments by name, as its command line has them.

    Raises:
        RecipeError: what is wrong with the row, or the input that it asks for and the one that is given.
    """
    try:
        item = declared(root, out)
    except DataError as error:
        raise RecipeError(str(error)) from None
    if item is None:
        return
    own = check_rows(root, item.owner, [item.name], out.parts[1]) if item.module in OF_ROWS else []
    if (refusal := refused(own)) is not None:
        raise refusal
    for name in {**item.arguments, **given}:
        asked, has = _texts(item.arguments.get(name)), _texts(given.get(name))
        if asked != has:
            what = item.arguments.get("row") or item.arguments.get("spec") or item.name
            raise RecipeError(
                f"{what}: it asks for --{name.replace('_', '-')} {_said(asked)}, but the stage is given {_said(has)}; "
                "dvc.yaml is older than params/: run `rewardsmith graph`, then the stage again"
            )


def _texts(value: Argument | Path | list[Path] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, tuple | list) else (str(value),)


def _said(values: tuple[str, ...]) -> str:
    return " ".join(values) or "nothing"
