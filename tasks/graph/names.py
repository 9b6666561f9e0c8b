"""Resolution of names on the command line: a scale, a paper, its rows, a trained reward model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from rlhf_core.errors import RecipeError, hint
from tasks.params.scales import DEFAULT_SCALE, scale_names

#: Name of `rewardsmith run` without one: the demo; with --full, the five papers' matrices.
SUITE = "suite"
#: `rewardsmith run all` is `rewardsmith run --full`.
ALL = "all"
#: `rewardsmith run demo-all` trains the papers' headline rows.
DEMO_ALL = "demo-all"
#: The scale that is rehearsed where none is named.
REHEARSED = "paper"
#: `params/demo/`: the rows that the demo trains, `rewardsmith run demo` or without a name.
DEMO_PAPER = "demo"


def known_scale(scale: str) -> str:
    """Returns a known scale; where the one that is meant without a name is not there, the only one of the tree."""
    folder = Path("params", "scales")
    if folder.is_dir() and not (folder / scale).is_dir():
        if scale in (DEFAULT_SCALE, REHEARSED) and len(found := scale_names(Path())) == 1:
            return found[0]
        raise RecipeError(f"unknown scale '{scale}'{hint(scale, sorted(scale_names(Path())), more=3)}")
    return scale


def demo_elsewhere(root: Path) -> str:
    """Returns where the demo's results are, where `make demo` left them in a clone below this folder; else nothing."""
    return "; the demo is in the folder .demo: cd .demo" if (root / ".demo" / "results").is_dir() else ""


def papers_of_repository(root: Path) -> tuple[str, ...]:
    """Returns the papers that have rows in this repository.

    Raises:
        RecipeError: this is not the repository.
    """
    from tasks.graph.rows import papers

    refuse_other_folder(root)
    return papers(root)


def known_paper(root: Path, paper: str) -> str:
    """Returns a paper or study that has rows in this repository."""
    if paper not in (known := papers_of_repository(root)):
        raise RecipeError(f"unknown paper '{paper}'{hint(paper, sorted(known), more=3)}")
    return paper


def refuse_other_folder(root: Path) -> None:
    """Refuses a folder that is neither the repository nor a project."""
    if not (root / "params.yaml").is_file():
        raise RecipeError(
            f"no params.yaml in {root}: run rewardsmith in the repository or in a project that `rewardsmith init` made"
        )


def _rows_by_paper(root: Path) -> dict[str, list[str]]:
    from tasks.graph.rows import row_addresses

    return {paper: list(row_addresses(root, paper)) for paper in papers_of_repository(root)}


def _papers_of_row(root: Path, name: str, known: Mapping[str, Collection[str]], among: Collection[str]) -> list[str]:
    """Returns the papers that have the row which a name on the command line means, `row` or `<paper>/<row>`.

    Args:
        known: rows by paper.
        among: papers whose rows a name without a paper may mean.

    Raises:
        RecipeError: none has it; the message names the nearest papers and rows.
    """
    given, _, row = name.rpartition("/")
    if found := [paper for paper in known if row in known[paper] and paper in ([given] if given else among)]:
        return found
    every = {f"{paper}/{one}" if given else one for paper, rows in known.items() for one in rows}
    near = hint(name, sorted(every if given else every | {*known}), more=3)
    raise RecipeError(f"unknown paper or row '{name}'{near}{demo_elsewhere(root)}")


def split_names(root: Path, names: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the one paper, and its rows, that names on the command line mean; a backbone is a row of every paper.

    A row is `row` or `<paper>/<row>`. Only the first name can be a paper, since a row may have a paper's name: `segment
    segment` is that row alone. Of papers that have a row, one that is named already counts, else the first. No name and
    `all` are the flow `suite`; `demo-all` is all headline rows.

    Raises:
        RecipeError: a name that is neither, with the nearest known ones; or rows of several papers.
    """
    from tasks.graph.rows import backbone_names

    refuse_other_folder(root)
    if not names or names == [ALL]:
        return SUITE, []
    if names == [DEMO_ALL]:
        return DEMO_ALL, []
    backbones = backbone_names(root)
    known = {paper: {*rows, *backbones} for paper, rows in _rows_by_paper(root).items()}
    first = names[:1] if names[0] in known else []
    rows = names[len(first) :]
    owned = {*first, *(paper for paper in (row.rpartition("/")[0] for row in rows) if paper in known)}
    for row in rows:
        owners = _papers_of_row(root, row, known, first or known)
        owned.add(next((paper for paper in owners if paper in owned), owners[0]))
    if len(owned) > 1:
        raise RecipeError(f"rows of several papers at once: {', '.join(sorted(owned))}. Run one paper at a time")
    return owned.pop(), [row.rpartition("/")[2] for row in rows]


def find_rows(root: Path, names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the paper and name of each row, `row` or `<paper>/<row>`; a paper's or study's name is all its rows, in
    the order of its pages.

    Raises:
        RecipeError: an unknown row, one that several papers have, or one that is named twice.
    """
    known, found = _rows_by_paper(root), list[tuple[str, str]]()
    every = {row for rows in known.values() for row in rows}
    for name in names:
        if name in known and name not in every:
            found += [(name, row) for row in known[name]]
            continue
        owners, row = _papers_of_row(root, name, known, known), name.rpartition("/")[2]
        if len(owners) > 1:
            several = ", ".join(f"{paper}/{row}" for paper in owners)
            raise RecipeError(f"several papers have a row '{name}'; name one of: {several}")
        found.append((owners[0], row))
    if twice := next((each for each in found if found.count(each) > 1), None):
        raise RecipeError(f"row '{'/'.join(twice)}' is named twice; name each row once")
    return found


def run_options(scale: str, seeds: Iterable[int]) -> list[str]:
    """Returns the words of a command line that set a scale other than the root's, and seeds."""
    options = [] if scale == DEFAULT_SCALE else ["--scale", scale]
    return options + [word for seed in seeds for word in ("--seed", str(seed))]


def trained_reward_model(model: str, seed: int, scale: str) -> Path:
    """Returns the folder of a reward model: the given one, else the result of that name and seed, `<paper>/<name>`
    where several papers have one.

    Raises:
        RecipeError: no match, with the seeds that there are or the nearest known names; or several matches.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder
    paper, _, name = model.rpartition("/")
    known = {path.parts[-2] for path in Path("results", scale).glob("*/reward_model/*/*")}
    every = sorted(Path("results", scale).glob(f"{paper or '*'}/reward_model/{name}/[0-9]*/result"))
    found = [result for result in every if result.parent.name == str(seed)]
    if not found:
        if seeds := sorted({int(result.parent.name) for result in every}):
            there = ", ".join(map(str, seeds))
            raise RecipeError(f"reward model '{model}' is not trained at seed {seed}; --seed is one of: {there}")
        if not known:
            refuse_other_folder(Path.cwd())
        near = hint(name, sorted(known), more=3) if known else "; none is trained yet: rewardsmith run"
        raise RecipeError(f"no trained reward model '{model}' (seed {seed}){near}")
    if len(found) > 1:
        several = ", ".join(f"{folder.parts[2]}/{name}" for folder in found)
        raise RecipeError(f"several papers have a reward model '{model}'; name one of: {several}")
    return found[0]


#: Folders of a paper's tables: of the full matrix, of what was run of it so far, of the headline rows.
FULL, TABLES_SO_FAR, DEMO = "tables", "tables-so-far", "tables-demo"


def made_tables(results: Path, paper: str) -> Path | None:
    """Returns the `result` folder of a paper's tables: the newer of the full ones and those so far, else the demo's.

    Args:
        results: the scale's results, such as `results/testbed`.
    """
    known = {name: results / paper / name / "result" for name in (FULL, TABLES_SO_FAR, DEMO)}
    there = {name: path for name, path in known.items() if (path / "tables.json").exists()}
    newer = [there[name] for name in (FULL, TABLES_SO_FAR) if name in there]
    if newer:
        return max(newer, key=lambda path: (path / "tables.json").stat().st_mtime)
    return there.get(DEMO)


def seeds_so_far(results: Path, paper: str) -> list[int]:
    """Returns the seeds at which any stage of a paper has a result."""
    found = results.glob(f"{paper}/*/*/[0-9]*/result")
    return sorted({int(path.parent.name) for path in found if path.parent.name.isdigit()})
