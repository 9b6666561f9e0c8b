"""Content of `tables.json` and `figures.json` of a tables stage, checked where it is read."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast, get_args

from rlhf_core.errors import DataError
from tasks.report.cells import MARKS
from tasks.report.figure_data import Style
from tasks.running.typed_results import check_types, read_typed_object

REMEDY = "Make the tables again: `rewardsmith run` with the paper's name"


class MadeCell(TypedDict):
    """A measured cell; see `tasks.report.measured.Cell`."""

    published: str | None
    status: str
    mean: float | None
    se: float | None
    seeds: dict[str, float]
    difference: float | None
    interval: list[float] | None
    worlds: int | None
    missing: str | None
    against: str
    word: str | None
    p: float | None
    smallest_visible: float | None
    reason: str | None
    verdict: str | None
    outcome: str | None
    unparsable: int | None
    one_sided: int | None
    why: str | None
    note: str | None
    partial: NotRequired[str | None]


class MadeColumn(TypedDict):
    """A column of a table."""

    key: str
    printed: str
    benchmark: str | None
    metric: str
    published: bool
    primary: bool
    decimals: int


class MadeRow(TypedDict):
    """A row of a table with its cells by column."""

    condition: str
    backbone: str | None
    extra: dict[str, Any]
    name: str | None
    group: str | None
    kind: str | None
    main: str | None
    is_main: bool
    broken: bool
    runs: dict[str, str]
    cells: dict[str, MadeCell]
    alarms: NotRequired[dict[str, str]]
    stopped: NotRequired[dict[str, str]]
    blank: NotRequired[list[str]]


class MadeTable(TypedDict):
    """A table with published and measured cells."""

    name: str
    id: str
    title: str
    kind: str
    is_result: bool
    evaluator: str | None
    exploratory: bool
    columns: list[MadeColumn]
    rows: list[MadeRow]
    judges: NotRequired[list[str]]


class MadeTables(TypedDict):
    """Content of tables.json."""

    title: str
    seeds: list[int]
    counts: dict[str, int]
    tables: list[MadeTable]


class MadeSeries(TypedDict):
    """A series of a panel; see `tasks.report.figure_data.Series`."""

    label: str
    x: list[float | str]
    y: list[float | str | None]
    error: list[float | None] | None
    style: str
    colour: int | None
    right: bool


class MadePanel(TypedDict):
    """Axes with their series."""

    title: str
    x_label: str
    y_label: str
    right_label: str
    series: list[MadeSeries]


class MadeFigure(TypedDict):
    """A figure; see `tasks.report.figure_data.FigureData`."""

    key: str
    title: str
    caption: str
    kind: str
    claims: list[str]
    panels: list[MadePanel]
    blocks: list[dict[str, Any]]
    missing: list[str]
    status: str


class MadeFigures(TypedDict):
    """Content of figures.json."""

    figures: list[MadeFigure]


class ColouredModel(TypedDict):
    """A response's tokens with a model's rewards."""

    name: str
    tokens: list[str]
    rewards: list[float | None]
    segments: list[list[float]] | None
    marked: NotRequired[list[bool] | None]


class ColouredBlock(TypedDict):
    """A response under several models."""

    title: str
    prompt: str
    models: list[ColouredModel]


class TrueClause(TypedDict):
    """A clause of a response."""

    text: str
    kind: str
    reward: float | None


class FoundSegment(TypedDict):
    """A segment of a response."""

    text: str


class SegmentationBlock(TypedDict):
    """True and found boundaries of a response."""

    prompt: str
    true: list[TrueClause]
    found: list[FoundSegment]
    f1: float


class ValueCell(TypedDict):
    """A mean and its standard error."""

    mean: float
    se: float | None


class ValueRow(TypedDict):
    """A line of values."""

    name: str
    cells: list[ValueCell | None]


class ValueBlock(TypedDict):
    """A table of values."""

    columns: list[str]
    rows: list[ValueRow]
    decimals: NotRequired[int]


class PrintedComparison(TypedDict):
    """A comparison of a claim; without `values` it was not run."""

    left: str
    right: str
    side: str
    verdict: str
    values: NotRequired[list[float]]
    difference: NotRequired[float]
    interval: NotRequired[list[float] | None]
    p: NotRequired[float | None]
    missing: NotRequired[str | None]
    worlds: NotRequired[int]
    constant: NotRequired[bool]


class ClaimRow(TypedDict):
    """A claim and its verdict."""

    text: str
    where: str
    verdict: str
    parts: list[PrintedComparison]
    broken: NotRequired[list[str]]
    uneven: NotRequired[str]


class ClaimBlock(TypedDict):
    """Claims of a paper."""

    rows: list[ClaimRow]


#: Blocks by kind of figure.
BLOCKS: Mapping[str, type[Any]] = {
    "coloured_text": ColouredBlock,
    "segmentation": SegmentationBlock,
    "table": ValueBlock,
    "claims": ClaimBlock,
}
#: Signs of the sides that a claim's comparison can hold.
SIDES = ("above", "below", "beside")
#: Fields of a claim's comparison that was run.
COMPARED = {"difference", "interval", "p", "missing", "worlds", "constant"}


def read_tables(path: Path) -> dict[str, Any]:
    """Returns the content of a tables.json.

    Raises:
        DataError: it is damaged, changed after its stage, or of another version of it.
    """
    found = read_typed_object(path, MadeTables)
    for table in found["tables"]:
        error_at = partial(DataError, file=str(path), field=table["name"], remedy=REMEDY)
        for row in table["rows"]:
            for column in table["columns"]:
                _check_cell(row["cells"].get(column["key"]), f"{row['condition']}, {column['key']}", error_at)
            if row["runs"] and None in (row["group"], row["kind"], row["name"]):
                raise error_at(f"row {row['condition']} has runs and no name")
    return cast(dict[str, Any], found)


def _check_cell(cell: MadeCell | None, name: str, error_at: Callable[[str], DataError]) -> None:
    if cell is None:
        raise error_at(f"there is no cell {name}")
    if cell["status"] == "measured" and cell["mean"] is None:
        raise error_at(f"the measured cell {name} has no mean")
    if cell["word"] is not None and cell["difference"] is None:
        raise error_at(f"the compared cell {name} has no difference")
    if cell["verdict"] is not None and cell["verdict"] not in MARKS:
        raise error_at(f"the cell {name} has the unknown verdict {cell['verdict']!r:.40}")
    if cell["interval"] is not None and len(cell["interval"]) != 2:
        raise error_at(f"the interval of the cell {name} has {len(cell['interval'])} bounds")


def read_figures(path: Path) -> list[dict[str, Any]]:
    """Returns the figures of a figures.json.

    Raises:
        DataError: it is damaged, changed after its stage, or of another version of it.
    """
    found = read_typed_object(path, MadeFigures)["figures"]
    for figure in found:
        error_at = partial(DataError, file=str(path), remedy=REMEDY)
        kind = BLOCKS.get(figure["kind"])
        for number, block in enumerate(figure["blocks"]):
            if kind is not None:
                check_types(block, kind, error_at, f"{figure['key']}/blocks/{number}")
        for panel in figure["panels"]:
            for series in panel["series"]:
                _check_series(series, partial(error_at, field=f"{figure['key']}/{panel['title']}/{series['label']}"))
        if figure["kind"] == "claims":
            _check_claims(figure["blocks"], error_at)
    return cast(list[dict[str, Any]], found)


def _check_series(series: MadeSeries, error_at: Callable[[str], DataError]) -> None:
    """Refuses a series whose lists are not of one length, or have words in the place of numbers."""
    x, y, error = series["x"], series["y"], series["error"]
    if len(x) != len(y) or (error is not None and len(error) != len(x)):
        raise error_at(f"{len(x)} positions, {len(y)} heights and {0 if error is None else len(error)} errors")
    if series["style"] not in get_args(Style):
        raise error_at(f"the unknown style {series['style']!r:.40}")
    words: Sequence[object] = x if series["style"] == "bars" else y if series["style"] == "intervals" else ()
    numbers = [one for each in (x, y) if each is not words for one in each]
    if not all(isinstance(one, str) for one in words) or any(isinstance(one, str) for one in numbers):
        raise error_at("words and numbers are mixed")
    if series["style"] == "guide" and not x:
        raise error_at("a guide without a place")


def _check_claims(blocks: Sequence[Mapping[str, Any]], error_at: Callable[..., DataError]) -> None:
    for row in (row for block in blocks for row in block["rows"]):
        for part in row["parts"]:
            lacking = sorted(COMPARED - part.keys()) if "values" in part else []
            few = "values" in part and len(part["values"]) < 2 - bool(part.get("constant"))
            if part["side"] not in SIDES or lacking or few:
                raise error_at(f"the claim '{row['text']:.60}' has a comparison that is not whole", field="claims")
