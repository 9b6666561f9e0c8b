"""The command line `rewardsmith`; `rewardsmith --help` lists its commands.

Heavy libraries are imported inside the commands, so that help and errors come at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rlhf_core.errors import PATH_ERRORS, RecipeError, RewardsmithError, path_error
from tasks.platform_state import join_platform

USER_ERROR = 2
#: The flow of every paper, and the name that stands for all their matrices.
SUITE, ALL = "suite", "all"

commands = typer.Typer(
    name="rewardsmith",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""Reward design for RLHF: train, compare and report reward recipes.

A **row** is one recipe of a paper's table (`params/<paper>/rows/<row>.yaml`). Running it trains the models it
needs, once, and shares them with every other row; a second run does nothing. Start with `rewardsmith doctor`,
then `rewardsmith plan`, then `rewardsmith run`.
""",
)

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PAPER | ROW]...",
        help="A paper (segment), rows of it, or 'all': every paper's matrix; nothing: the demo-sized rows.",
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Every row and seed of the paper, not the demo-sized set.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", metavar="N", help="Only this seed (may be repeated).")]


def known_scale(scale: str) -> str:
    """The scale, where params/scales/ has it.

    Raises:
        RecipeError: it has not, with the nearest known ones.
    """
    folder = Path("params", "scales")
    if folder.is_dir() and not (folder / scale).is_dir():
        from tasks.rows import nearest

        raise RecipeError(f"unknown scale '{scale}'. {nearest(scale, (path.name for path in folder.glob('*/')))}")
    return scale


Scale = Annotated[
    str,
    typer.Option(
        help="How big: testbed (CPU minutes), hh (real pairs), small (a GPU), paper (8 GPUs).", callback=known_scale
    ),
]

Remote = Annotated[
    str, typer.Option(metavar="NAME", help="Share the work with other machines by this DVC remote (docs/cluster.md).")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the stages' own logs.")]


def papers_here(root: Path) -> tuple[str, ...]:
    """The papers that have rows in this repository.

    Raises:
        RecipeError: this is not the repository.
    """
    from tasks.rows import papers

    if not (root / "params.yaml").is_file():
        raise RecipeError(f"no params.yaml in {root}: run rewardsmith in the repository")
    return papers(root)


def split_names(root: Path, names: list[str]) -> tuple[str, list[str]]:
    """Paper and rows out of the names on the command line.

    Only the first name can be a paper, since a row may have a paper's name: `segment segment` is that row alone. No
    name and `all` are the flow of every paper, `suite`.

    Raises:
        RecipeError: a name that is neither, with the nearest known ones; or rows of several papers.
    """
    from tasks.rows import backbone_names, load_rows, nearest

    known_papers = papers_here(root)
    if not names or names == [ALL]:
        return SUITE, []
    rows = {paper: set(load_rows(root, paper)) for paper in known_papers}
    backbones = backbone_names(root)
    first_is_paper = bool(names) and names[0] in known_papers
    papers, chosen = set(names[:1] if first_is_paper else []), names[1:] if first_is_paper else list(names)
    for name in chosen:
        candidates = names[:1] if first_is_paper else known_papers
        owners = [paper for paper in candidates if name in rows[paper] | backbones]
        if not owners:
            known = {*known_papers, *backbones, *(row for found in rows.values() for row in found)}
            raise RecipeError(f"unknown paper or row '{name}'. {nearest(name, known)}")
        papers.add(next((paper for paper in owners if paper in papers), owners[0]))
    if len(papers) > 1:
        raise RecipeError(f"rows of several papers at once: {', '.join(sorted(papers))}. Run one paper at a time")
    return papers.pop(), chosen


def _clock(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"


@commands.command()
def run(
    names: Names = None,
    full: Full = False,
    seed: Seeds = None,
    scale: Scale = "testbed",
    report: Annotated[bool, typer.Option(help="Write the report page afterwards.")] = True,
    sync: Annotated[bool, typer.Option(help="Mirror the results into MLflow afterwards.")] = True,
    remote: Remote = "",
    verbose: Verbose = False,
) -> None:
    """Train and evaluate what is not up to date, side by side within this machine's cores and GPUs.

    Examples: `rewardsmith run` (the demo-sized rows) · `rewardsmith run segment --full` ·
    `rewardsmith run bandit token --seed 0`. Logs of each stage: `.work/logs/`. Interrupting is safe: the same
    command goes on where it stopped.
    """
    root = Path.cwd()
    paper, rows = split_names(root, names or [])
    options = ["--full"] if full or names == [ALL] else []
    options += [*([] if report else ["--no-report"]), *([] if sync else ["--no-sync"])]
    options += ["--remote", remote] if remote else []
    raise typer.Exit(run_flow(paper, scale, rows, seed or [], options, verbose=verbose))


@commands.command()
def worker(
    remote: Annotated[str, typer.Option(metavar="NAME", help="The DVC remote that the machines share.")],
    names: Names = None,
    full: Full = False,
    seed: Seeds = None,
    scale: Scale = "testbed",
    verbose: Verbose = False,
) -> None:
    """Help other machines with a run: take stages of it, push their results, and leave the rest where it is.

    The same names and options as the run that is to be helped, in a clone at the same commit, with PREFECT_API_URL at
    the server that all use. It ends when nothing is left. Example: `rewardsmith worker segment --full --remote team`.
    """
    paper, rows = split_names(Path.cwd(), names or [])
    options = ["--full"] if full or names == [ALL] else []
    options += ["--no-report", "--no-sync", "--no-pull", "--remote", remote]
    raise typer.Exit(run_flow(paper, scale, rows, seed or [], options, verbose=verbose))


def run_flow(
    paper: str, scale: str, rows: Sequence[str], seeds: Sequence[int], options: Sequence[str], *, verbose: bool
) -> int:
    """Runs a paper's flow, or the suite's, in a process of its own; returns its exit status."""
    join_platform(Path.cwd())
    if not verbose:
        os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
        os.environ["REWARDSMITH_PROGRESS"] = "true"
    project = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [project, os.environ.get("PYTHONPATH")]))
    own = Path(project, "flows", f"{paper}.py").exists()
    call = [sys.executable, "-P", "-m", *([f"flows.{paper}"] if own else ["flows.paper", paper])]
    call += ["--scale", scale, *options]
    call += ["--rows", *rows] if rows else []
    call += ["--seeds", *map(str, seeds)] if seeds else []
    process = subprocess.Popen(call)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        status = process.wait()
    return status if status >= 0 else 130


@commands.command()
def plan(
    names: Names = None,
    full: Full = False,
    seed: Seeds = None,
    scale: Scale = "testbed",
    all_stages: Annotated[bool, typer.Option("--all", help="Also list what is up to date.")] = False,
) -> None:
    """Say what `run` would do and why, what comes from the cache, and how long it should take."""
    from rich.console import Console
    from rich.table import Table

    from tasks import machine
    from tasks import plan as planning

    root = Path.cwd()
    papers = papers_here(root)
    paper, rows = split_names(root, names or [])
    if paper == SUITE:
        whole = full or names == [ALL]
        parts = [planning.pipeline_files(root, name, scale=scale, full=True) for name in papers if whole]
        files = list(dict.fromkeys(file for part in parts for file in part)) if whole else [planning.ROOT_FILE]
        stages = planning.select(planning.read_state(root, files), [], seed or [])
    else:
        papers = (paper,)
        files = planning.pipeline_files(root, paper, scale=scale, full=full)
        stages = planning.select(planning.read_state(root, files), rows, seed or [], paper)
    seconds = planning.expected_seconds(root, stages.values())
    table = Table(box=None, pad_edge=False)
    for column in ("stage", "what", "expected", "why"):
        table.add_column(column, overflow="fold")
    styles = {"run": "yellow", "restore": "cyan", "current": "dim"}
    words = {"run": "run", "restore": "from cache", "current": "up to date"}
    for stage in stages.values():
        if stage.state == "current" and not all_stages:
            continue
        known = seconds[stage.address]
        expected = ("?" if known is None else _clock(known)) if stage.state == "run" else ""
        why = stage.reasons[0] if stage.reasons else ""
        why += f" (and {len(stage.reasons) - 1} more)" if len(stage.reasons) > 1 else ""
        table.add_row(stage.address.rpartition(":")[2], words[stage.state], expected, why, style=styles[stage.state])
    if table.rows:
        Console().print(table)
    counts = {state: sum(stage.state == state for stage in stages.values()) for state in words}
    line = ", ".join(f"{counts[state]} {words[state]}" for state in words if counts[state])
    times = [seconds[a] for a, stage in stages.items() if stage.state == "run"]
    known_times = [t for t in times if t is not None]
    if known_times:
        side_by_side = machine.cores() if scale == "testbed" else max(1, len(machine.gpus()))
        line += f"; about {_clock(sum(known_times) / side_by_side)} on {side_by_side} slot(s)"
        unknown = len(times) - len(known_times)
        line += f" beside {unknown} stage(s) never run here" if unknown else ""
    size = planning.expected_bytes(root, stages.values()) / 2**30
    if counts["run"]:
        shown = f"about {size:.2f} GiB" if size else "unknown size (nothing of its kind ran here)"
        line += f"; disk: {shown} in the cache, {machine.free_disk_gb(root):.0f} GiB free"
        if size > machine.free_disk_gb(root):
            line += ". NOT ENOUGH: `dvc gc -w`, or a cache on another disk (`dvc cache dir`)"
    print(line)
    for name in papers if counts["run"] and scale not in ("testbed", "hh") else ():
        _scale_costs(root, scale, name)


def _scale_costs(root: Path, scale: str, paper: str) -> None:
    """GPU hours and memory of a paper's stages at a scale that loads models, by the documented models of both."""
    from rlhf_core.models.memory import GIB, Sharding
    from tasks.scale_check import check_scale

    gpus = 8 if scale == "paper" else 1
    try:
        stages = check_scale(root, scale, Sharding(gpus, 3 if gpus > 1 else None, bf16=gpus > 1), paper)
    except RecipeError as error:
        print(f"{paper}: no estimate ({error})")
        return
    for stage in stages:
        each = f"{stage.total / GIB:.0f} GiB on each of {gpus} GPU(s)"
        print(f"{paper}: {stage.backbone} {stage.stage}: about {stage.gpu_hours:.1f} GPU hours a seed, {each}")


@commands.command()
def table(
    name: Annotated[
        str, typer.Argument(metavar="PAPER/N", help="The table, such as segment/1; or a study of one's own.")
    ],
    scale: Scale = "testbed",
    demo: Annotated[bool, typer.Option("--demo", help="The demo-sized results even where others exist.")] = False,
) -> None:
    """Print a table of a paper: published and measured side by side, with direction verdicts.

    The name of a study of one's own (`params/my-study/rows/`) sets its rows side by side: means over seeds.
    """
    from rlhf_core.published import registry
    from tasks.tables import DEMO, FULL, made_tables, print_table

    if name not in registry.PAPERS and Path("params", name, "rows").is_dir():
        from tasks.comparison import print_comparison

        print_comparison(Path.cwd(), scale, name)
        return
    results, paper = Path("results") / scale, name.split("/")[0]
    folder = results / paper / DEMO / "result" if demo else made_tables(results, paper)
    print_table((folder or results / paper / FULL / "result") / "tables.json", name)


@commands.command()
def report(
    scale: Scale = "testbed",
    out: Annotated[Path, typer.Option(help="Folder for index.html and report.md.")] = Path("report"),
) -> None:
    """Write the report: one self-contained HTML page, and Markdown."""
    from tasks.report.__main__ import write_report

    print(f"report: {write_report(Path('results') / scale, out).resolve()}")


@commands.command()
def hackability(
    flaw: Annotated[list[str] | None, typer.Option(help="Only this flaw (may be repeated).")] = None,
    mitigation: Annotated[list[str] | None, typer.Option(help="Only this mitigation (may be repeated).")] = None,
    seed: Seeds = None,
    function: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="A reward of your own: a Python callable.")
    ] = None,
    gives: Annotated[str, typer.Option(help="What the callable gives: sequence (one value), tokens.")] = "sequence",
    reward_model: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A reward of your own: a folder with a trained model/.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call your own reward in rows and on the page.")] = None,
    scale: Scale = "testbed",
    out: Annotated[Path, typer.Option(help="Folder for hackability.html and hackability.json.")] = Path("report"),
    train: Annotated[bool, typer.Option(help="Train what is missing; else show what there is.")] = True,
    sync: Annotated[bool, typer.Option(help="Mirror the results into MLflow afterwards.")] = True,
    verbose: Verbose = False,
) -> None:
    """Find out whether a reward can be hacked, and which mitigation helps: one page.

    Trains a policy on each reward with each mitigation and measures, against the testbed's true rewards, how far the
    proxy rose and the true win rate fell, when that set in, and which clauses the policy wrote more of. Without a
    reward of your own: reward models of four annotators with a **known flaw** (`params/hackability/reward_models/`).
    Mitigations stand in `params/hackability/mitigations.yaml`. Seed 0 unless given.

    Examples: `rewardsmith hackability --mitigation vanilla --mitigation par` (every flaw, two mitigations) ·
    `rewardsmith hackability --flaw length` (one flaw, every mitigation) ·
    `rewardsmith hackability --function own_rewards:brevity` (a function of yours, from own_rewards.py here) ·
    `rewardsmith hackability --reward-model results/testbed/segment/reward_model/bandit/0/result` (a trained model).

    A mitigation that compares with reference rewards needs a reward model; with a function it is left out, and the
    page says so. What was trained is not trained again; rows are written to `params/hackability/rows/`.
    """
    from tasks import hackability as laboratory
    from tasks.graph import matrix_folders
    from tasks.graph import write as write_graph

    root = Path.cwd()
    every = laboratory.mitigations(root)
    names = laboratory.chosen(mitigation or [], list(every), "mitigation")
    if function is None and reward_model is None:
        rewards = [
            laboratory.rows_of(root, each, names)
            for each in laboratory.chosen(flaw or [], laboratory.flaws(root), "flaw")
        ]
    else:
        own = laboratory.OwnReward(name or laboratory.own_name(function, reward_model), function, reward_model, gives)
        rewards = [laboratory.rows_of(root, own.name, names, own)]
        rewards += [laboratory.rows_of(root, each, names) for each in flaw or []]
        if own.model is not None:
            laboratory.check_words(root, scale, own)
    seeds = seed or [0]
    status = 0
    if train:
        write_graph(root, matrix_folders(scale, laboratory.LABORATORY))
        rows = [row for reward in rewards for row in reward.rows.values()]
        options = ["--no-report", *([] if sync else ["--no-sync"])]
        status = run_flow(laboratory.LABORATORY, scale, rows, seeds, options, verbose=verbose)
    from tasks.report.hackability import compare, write_comparison

    print(f"report: {write_comparison(compare(root, scale, rewards, names, seeds), out).resolve()}")
    raise typer.Exit(status)


@commands.command()
def sync(
    paper: Annotated[
        str | None, typer.Argument(help="The paper whose results to mirror; every paper's without it.")
    ] = None,
    scale: Scale = "testbed",
) -> None:
    """Mirror stage outputs into MLflow (MLFLOW_TRACKING_URI, else mlflow.db here); repeating it changes nothing.

    Look at the runs with `mlflow ui --backend-store-uri sqlite:///mlflow.db`.
    """
    from tasks import tracking

    known = papers_here(Path.cwd())
    join_platform(Path.cwd())
    if paper is not None and paper not in known:
        from tasks.rows import nearest

        raise RecipeError(f"unknown paper '{paper}'. {nearest(paper, known)}")
    print(f"MLflow: {tracking.tracking_uri(Path.cwd()).split('@')[-1]}")
    for name in [paper] if paper else [name for name in known if Path("results", scale, name).is_dir()]:
        print(f"{name}: {tracking.sync(Path.cwd(), name, scale).line()}")


def trained_reward_model(model: str, seed: int, scale: str) -> Path:
    """The folder of a reward model: the given one, else the result of that name and seed, `<paper>/<name>` where
    several papers have one.

    Raises:
        RecipeError: there is none, with the nearest known ones.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder
    paper, _, name = model.rpartition("/")
    found = sorted(Path("results", scale).glob(f"{paper or '*'}/reward_model/{name}/{seed}/result"))
    if not found:
        from tasks.rows import nearest

        known = {path.parts[-2] for path in Path("results", scale).glob("*/reward_model/*/*")}
        hint = nearest(name, known) if known else "None is trained yet: rewardsmith run"
        raise RecipeError(f"no trained reward model '{model}' (seed {seed}). {hint}")
    return found[0]


@commands.command()
def explain(
    prompt: Annotated[str | None, typer.Option(help="The prompt; '-' reads it from standard input.")] = None,
    response: Annotated[str | None, typer.Option(help="The response to colour.")] = None,
    model: Annotated[str, typer.Option(help="A reward model: its name, or the directory of its result.")] = "segment",
    rows: Annotated[
        list[str] | None, typer.Option(help="Instead: rows whose credit of the same wrong solutions is compared.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which seed of the model.")] = 0,
    scale: Scale = "testbed",
) -> None:
    """Colour a response by the rewards that a trained reward model gives to its tokens and segments.

    Or compare what rows that learned from sampled solutions credit their tokens with:
    `rewardsmith explain --rows math-rlmec --rows math-ppo-a2c --rows math-vanilla-ppo`.
    """
    if rows:
        _compare_credit(rows, seed, scale)
        return
    if prompt is None or response is None:
        raise RecipeError("explain needs --prompt and --response, or --rows")
    folder = trained_reward_model(model, seed, scale)
    from rich.console import Console
    from transformers.utils import logging

    from tasks.explain import explain as score
    from tasks.report.colour import coloured_text, pieces

    logging.disable_progress_bar()
    scored = score(folder, sys.stdin.read() if prompt == "-" else prompt, response)
    parts = [scored["tokens"], scored["rewards"], scored.get("segments")]
    console = Console()
    console.print(coloured_text(*parts))
    weighed = zip(scored["segment_rewards"], scored["weights"], strict=True)
    for number, (reward, weight) in enumerate(weighed, start=1):
        console.print(f"segment {number}: reward {reward:+.3f}, weight {weight:.3f}", style="dim", highlight=False)
    console.print(f"response: {scored['total']:+.3f}", style="dim", highlight=False)
    for piece in pieces(*parts):
        value = "      -" if piece.reward is None else f"{piece.reward:+7.3f}"
        console.print(f"{value}  {piece.text.strip()!r}", style="dim", highlight=False, markup=False)


def _compare_credit(names: list[str], seed: int, scale: str) -> None:
    from rich.console import Console

    from tasks.explain import shared_credit
    from tasks.report.colour import colour_scale, coloured_text, pieces

    console = Console()
    for solution in shared_credit(Path("results", scale), names, seed):
        console.print(solution["prompt"], style="bold", highlight=False, markup=False)
        for name, credit in solution["credit"].items():
            limit = colour_scale(pieces(solution["tokens"], credit))
            console.print(f"{name}, {-limit:+.2f} to {limit:+.2f}", style="dim", highlight=False)
            console.print(coloured_text(solution["tokens"], credit, marked=solution["mistaken"]))
        console.print(f"rewrite: {solution['rewrite']}", style="dim", highlight=False, markup=False)
    console.print("Underlined: tokens that the rewrite replaces or deletes.", style="dim")


@commands.command(name="bench-reward")
def bench_reward(
    model: Annotated[
        str, typer.Argument(help="A trained reward model's name or result folder, or a Hugging Face classifier's.")
    ],
    data: Annotated[Path | None, typer.Option(help="Folder of the test sets; else REWARDSMITH_DATA.")] = None,
    sets: Annotated[str | None, typer.Option(help="Names, separated by commas; all without it.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="The most pairs of each set, evenly spaced.")] = None,
    seed: Annotated[int, typer.Option(help="Which seed of the model.")] = 0,
    scale: Scale = "testbed",
    batch: Annotated[int, typer.Option(min=1, help="Responses per forward pass.")] = 16,
    template: Annotated[str, typer.Option(help="Chat template of a Hugging Face model.")] = "tokenizer",
    prompt_tokens: Annotated[int, typer.Option(help="Longest prompt of a Hugging Face model.")] = 1728,
    total_tokens: Annotated[int, typer.Option(help="Longest prompt and response of it together.")] = 2048,
    out: Annotated[Path | None, typer.Option(help="Also write the scores to this JSON file.")] = None,
) -> None:
    """Accuracy of any reward model on real preference test sets, with 95 % intervals.

    Scores that depend on batch size or padding are refused first. Example:
    `rewardsmith bench-reward sentence --sets llmbar,hhh_alignment`.
    """
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from rlhf_core.data.truncation import Limits
    from tasks import bench_reward as benching
    from tasks.artifacts import write_json

    chosen = sets.split(",") if sets else list(benching.SETS)
    folder, limits = trained_reward_model(model, seed, scale), Limits(prompt_tokens, total_tokens)
    scores, cut = benching.bench_reward(
        folder, directory=data, sets=chosen, rows=rows, batch=batch, template=template, limits=limits
    )
    table = Table(box=None, pad_edge=False)
    for column in ("set", "part"):
        table.add_column(column)
    for column in ("pairs", "accuracy", "95 %", "ties"):
        table.add_column(column, justify="right")
    for score in scores:
        interval = f"{score.lower:.3f} to {score.upper:.3f}"
        whole = score.part == benching.ALL
        cells = (str(score.pairs), f"{score.accuracy:.3f}", interval, str(score.ties))
        table.add_row(score.name if whole else "", score.part, *cells, style="bold" if whole else None)
    Console().print(table)
    print(f"cut to the model's limits: {100 * cut:.1f} % of prompts and responses")
    if out is not None:
        write_json(out, {"model": str(folder), "cut": cut, "scores": [asdict(score) for score in scores]})


@commands.command()
def doctor(
    scale: Annotated[str | None, typer.Option(help="Check a scale without weights instead: small, paper.")] = None,
    deepspeed: Annotated[Path | None, typer.Option(help="Its DeepSpeed configuration; none: DDP in float32.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs, for --scale.")] = 8,
    gpu_memory: Annotated[float, typer.Option(help="GiB of each GPU, for --scale.")] = 80.0,
) -> None:
    """Check this machine: what is missing, and how to get it. Or check that a scale fits some GPUs.

    Example: `rewardsmith doctor --scale paper --deepspeed infra/deepspeed/zero3-offload.json --gpus 8`.
    """
    if scale is not None:
        from tasks.scale_check import report as measure

        raise typer.Exit(1 if measure(Path.cwd(), scale, deepspeed, gpus, gpu_memory) else 0)
    from tasks.doctor import report as examine

    raise typer.Exit(1 if examine(Path.cwd()) else 0)


@commands.command()
def verify(
    write_reference: Annotated[
        bool, typer.Option("--write-reference", help="Make reference/demo.json from these results.")
    ] = False,
) -> None:
    """Compare the demo's results with the committed reference, within stated tolerances.

    Exits with 1 and the list of deviations when one lies outside.
    """
    from tasks.verify import main as compare

    raise typer.Exit(compare(["--write-reference"] if write_reference else []))


@commands.command()
def graph(
    matrix: Annotated[str | None, typer.Option(metavar="PAPER", help="Also write this paper's full matrix.")] = None,
    scale: Scale = "testbed",
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 when not current.")] = False,
) -> None:
    """Bring dvc.yaml and the graph files up to date with params/ and the stages' versions.

    The matrix of a paper (`pipelines/<scale>/<paper>/dvc.yaml`) is written when `run` or `plan` first asks for it, or
    here with `--matrix`.
    """
    from tasks.graph import main as write_graph

    call = ["--matrix", matrix, "--scale", scale] if matrix else []
    raise typer.Exit(write_graph([*call, *(["--check"] if check else [])]))


def _python(*arguments: str) -> int:
    """Runs a module of the project in the repository; returns its exit status."""
    project = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [project, os.environ.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, "-P", "-m", *arguments], env={**os.environ, "PYTHONPATH": path}).returncode


@commands.command()
def up(
    prefect_port: Annotated[int | None, typer.Option(help="Port of Prefect; else 4200 or a free one.")] = None,
    mlflow_port: Annotated[int | None, typer.Option(help="Port of MLflow; else 5000 or a free one.")] = None,
    page_port: Annotated[int | None, typer.Option(help="Port of the page; else 4300 or a free one.")] = None,
) -> None:
    """Start the platform on this machine: Prefect with a worker, MLflow, and a page that links them and the report.

    Again: starts what is missing and repairs what killed processes left. `rewardsmith down` stops it. Servers listen on
    this machine only; user and password are generated (`.work/platform/credentials.json`).
    """
    papers_here(Path.cwd())
    asked = {"prefect": prefect_port, "mlflow": mlflow_port, "page": page_port}
    ports = [word for name, port in asked.items() if port for word in (f"--{name}-port", str(port))]
    raise typer.Exit(_python("flows.servers", "up", *ports))


@commands.command()
def down() -> None:
    """Stop the platform: worker first, then its runs, then the servers."""
    raise typer.Exit(_python("flows.servers", "down"))


@commands.command()
def promote(
    name: Annotated[str, typer.Argument(help="A registered model, such as segment-policy-segment.")],
    seed: Annotated[int, typer.Option(help="Its result of this seed.")] = 0,
    alias: Annotated[str, typer.Option(help="The alias to set.")] = "champion",
) -> None:
    """Point an alias of the model registry at a result; re-evaluation follows it."""
    from tasks import tracking

    join_platform(Path.cwd())
    found = tracking.open_registry(Path.cwd()).promote(name, alias, seed)
    print(f"{name}@{alias} is version {found.version}: {found.path} ({found.digest[:12]})")


@commands.command()
def adopt(name: Annotated[str, typer.Argument(help="The recipe, as named in the form.")]) -> None:
    """Make a recipe that ran from the Prefect form a row of this tree."""
    raise typer.Exit(_python("flows.recipe", name))


def app() -> None:
    """Entry point: an error of the user's prints one line and exits with 2."""
    try:
        commands()
    except (RewardsmithError, *PATH_ERRORS) as error:
        print(f"error: {path_error(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        sys.exit(USER_ERROR)


if __name__ == "__main__":
    app()
