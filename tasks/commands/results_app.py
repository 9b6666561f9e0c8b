"""Commands that read results: tables, comparisons, pages, `rewardsmith verify` and `rewardsmith export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tasks.commands.options import Scale, Seeds, print_table
from tasks.graph.names import known_paper, papers_of_repository
from tasks.params.pages import page_files


def table(
    name: Annotated[str, typer.Argument(metavar="PAPER/N", help="The table, such as segment/1; or your own study.")],
    scale: Scale = "testbed",
    demo: Annotated[bool, typer.Option("--demo", help="The headline rows' results even where others exist.")] = False,
) -> None:
    """Print a table of a paper: published and measured side by side, with direction verdicts.

    The name of your own study (`params/my-study/rows.yaml`) sets its rows beside the first one, as `compare` does.
    """
    from rlhf_core.published import printed_tables
    from tasks.graph.names import DEMO, FULL, made_tables
    from tasks.report.paper_tables import print_table

    if name not in printed_tables.PAPERS and page_files(Path("params", name), "rows"):
        from tasks.report.comparison import print_rows

        print_rows(Path.cwd(), scale, [name])
        return
    results, paper = Path("results") / scale, name.split("/")[0]
    folder = results / paper / DEMO / "result" if demo else made_tables(results, paper)
    print_table((folder or results / paper / FULL / "result") / "tables.json", name)


def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="ROW ROW...", help="Rows, `paper/row` where several papers have one; or a study."),
    ],
    scale: Scale = "testbed",
    seed: Seeds = None,
    metric: Annotated[str | None, typer.Option(help="By this metric; the win rate over SFT unless given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for compare.html.")] = Path("report"),
) -> None:
    """Set rows of any papers beside the first one: differences, curves, the same prompts answered by each.

    Examples: `rewardsmith compare par/vanilla par/par` · `rewardsmith compare bandit segment/segment --metric kl`.
    """
    from tasks.report.comparison import print_rows, write_comparison

    found = print_rows(Path.cwd(), scale, names, metric=metric, seeds=seed or ())
    print(f"curves and texts: {write_comparison(found, out).resolve()}")


def rows(
    paper: Annotated[str | None, typer.Argument(help="Only the rows of this paper or study.")] = None,
    scale: Scale = "testbed",
) -> None:
    """List the rows, with the seeds at which each has a result."""
    from tasks.graph.rows import row_addresses
    from tasks.report.row_runs import row_runs

    root = Path.cwd()
    papers = papers_of_repository(root) if paper is None else [known_paper(root, paper)]
    every = [row_runs(root, scale, each, name) for each in papers for name in sorted(row_addresses(root, each))]
    shown = [row for row in every if row.runs or paper is not None]
    lines = [(row.address, seeds_text(sorted(row.runs)), row.title) for row in shown]
    print_table(("row", "seeds", "title"), lines, styles=["" if row.runs else "dim" for row in shown])
    if left := len(every) - len(shown):
        print(f"{left} rows without results at scale {scale}; those of a paper: rewardsmith rows PAPER")


def seeds_text(seeds: Sequence[int]) -> str:
    """Returns seeds with neighbours as a range: `0 to 2, 100`; `-` without any."""
    first = [seed for seed in seeds if seed - 1 not in seeds]
    last = [seed for seed in seeds if seed + 1 not in seeds]
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(first, last, strict=True)) or "-"


def report(
    scale: Scale = "testbed",
    out: Annotated[Path, typer.Option(help="Folder for index.html and report.md.")] = Path("report"),
) -> None:
    """Write the report: one self-contained HTML page, and Markdown."""
    from tasks.report.__main__ import write_report

    print(f"report: {write_report(Path('results') / scale, out).resolve()}")


def atlas(
    out: Annotated[Path, typer.Option(help="Folder for atlas.html and atlas.md.")] = Path("report"),
) -> None:
    """Write the atlas: one page of all studies with their findings, and what was asked of the papers' claims."""
    from tasks.report.atlas import write_atlas

    print(f"atlas: {write_atlas(Path(), out).resolve()}")


def verify(
    what: Annotated[str, typer.Argument(help="demo, or demo-all: all headline rows.")] = "demo",
    write_reference: Annotated[
        bool, typer.Option("--write-reference", help="Make the reference from these results.")
    ] = False,
) -> None:
    """Compare results with their records and with the committed reference.

    References: `reference/demo.json`, `reference/demo_all.json`. Exits with 1 if a result is missing or was changed,
    with 2 if settings, data, tokenizers or directions of win rates are not the reference's.
    """
    from tasks.commands import verify as verifying

    if write_reference:
        verifying.write_reference(Path(), what)
    else:
        raise typer.Exit(verifying.verify(Path(), what))


def export(
    result: Annotated[Path, typer.Argument(help="Result folder of a stage reward_model, policy or sft.")],
    folder: Annotated[Path, typer.Argument(help="A new folder for the model.")],
    data: Annotated[
        Path | None, typer.Option(help="Result of the data that it was trained on; else as its record says.")
    ] = None,
) -> None:
    """Write a trained model as transformers loads it, with tokenizer, chat template and model card.

    A reward model becomes an AutoModelForSequenceClassification that scores the same responses to 1e-5, a policy an
    AutoModelForCausalLM; reward models that are read at several tokens are refused. Push the folder with
    `hf upload USER/NAME FOLDER`. Example:
    `rewardsmith export results/testbed/par/reward_model/standard/0/result my-reward-model`.
    """
    from tasks.commands.export import export as write

    write(result, folder, data)
    print(f"model: {folder}; push it with: hf upload USER/{folder.name} {folder}")
