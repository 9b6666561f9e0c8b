"""The command line `rewardsmith`; `rewardsmith --help` lists its commands.

Heavy libraries are imported inside the commands, so that help and errors come at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rlhf_core.errors import PATH_ERRORS, RecipeError, RewardsmithError, hint, path_error
from tasks.graph.names import ALL, known_scale, papers_here, present, split_names, trained_reward_model
from tasks.params.pages import page_files
from tasks.running.platform_state import join_platform

USER_ERROR = 2

commands = typer.Typer(
    name="rewardsmith",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""Reward design for RLHF: train, compare and report reward recipes.

A **row** is one recipe of a paper's table (an entry of `params/<paper>/rows.yaml`). Running it trains the models it
needs, once, and shares them with every other row; a second run does nothing. Start with `rewardsmith doctor`,
then `rewardsmith plan`, then `rewardsmith run`.
""",
)


@commands.callback()
def before(context: typer.Context) -> None:
    if context.invoked_subcommand != "migrate":
        from tasks.graph.rows import refuse_old_tree

        refuse_old_tree(Path.cwd())


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PAPER | ROW]...",
        help="A paper (segment), some of its rows, or 'all' (the five papers' matrix); by default the demo-sized rows.",
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Every row and seed of the paper, not the demo-sized set.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", metavar="N", help="Only this seed (may be repeated).")]


Scale = Annotated[
    str,
    typer.Option(
        help="Size: testbed (CPU minutes), hh, feedback, reasoning (real data), small (a GPU), paper (8 GPUs).",
        callback=known_scale,
    ),
]

Remote = Annotated[
    str, typer.Option(metavar="NAME", help="Share the work with other machines by this DVC remote (docs/cluster.md).")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the stages' own logs.")]


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
    """Train and evaluate the rows that are not up to date, in parallel on this machine's cores and GPUs.

    Examples: `rewardsmith run` (the demo-sized rows) · `rewardsmith run segment --full` ·
    `rewardsmith run bandit token --seed 0` · `rewardsmith run par odin` (a row of the full matrix alone). Logs of each
    stage: `.work/logs/`. Interrupting is safe: the same command continues where it stopped.
    """
    from tasks.dvc.ended_runs import Asked, nothing_to_do
    from tasks.dvc.plan import refuse_asked

    root = Path.cwd()
    paper, rows = split_names(root, names or [])
    full = full or names == [ALL]
    join_platform(root)
    asked = Asked(paper, scale, full, tuple(rows), tuple(seed or ()), report, sync)
    if not remote and (current := nothing_to_do(root, asked)) is not None:
        print(current)
        return
    refuse_asked(root, paper, rows, scale=scale, full=full)
    options = ["--full"] if full else []
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

    Give the names and options of that run, in a clone at the same commit, with PREFECT_API_URL at
    the shared server. It ends when nothing is left. Example: `rewardsmith worker segment --full --remote team`.
    """
    paper, rows = split_names(Path.cwd(), names or [])
    options = ["--full"] if full or names == [ALL] else []
    options += ["--no-report", "--no-sync", "--no-pull", "--remote", remote]
    raise typer.Exit(run_flow(paper, scale, rows, seed or [], options, verbose=verbose))


def show_progress(verbose: bool) -> None:
    """Lets flows show their progress, and Prefect's log only where it was asked for."""
    if not verbose:
        os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
        os.environ["REWARDSMITH_PROGRESS"] = "true"


def run_flow(
    paper: str, scale: str, rows: Sequence[str], seeds: Sequence[int], options: Sequence[str], *, verbose: bool
) -> int:
    """Runs a paper's flow, or the suite's, in a process of its own; returns its exit status."""
    project = Path(__file__).resolve().parent.parent
    own = (project / "flows" / f"{paper}.py").exists()
    words = [] if own else [paper]
    words += ["--scale", scale, *options]
    words += ["--rows", *rows] if rows else []
    words += ["--seeds", *map(str, seeds)] if seeds else []
    return run_module(f"flows.{paper}" if own else "flows.paper", words, verbose=verbose)


def run_module(module: str, words: Sequence[str], *, verbose: bool) -> int:
    """Runs a flow's module in a process of its own; returns its exit status."""
    join_platform(Path.cwd())
    show_progress(verbose)
    project = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [project, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen([sys.executable, "-P", "-m", module, *words])
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))  # a terminal interrupts both by itself
    try:
        status = process.wait()
    except KeyboardInterrupt:
        status = process.wait()
    return status if status >= 0 else 128 - status


@commands.command()
def plan(
    names: Names = None,
    full: Full = False,
    seed: Seeds = None,
    scale: Scale = "testbed",
    all_stages: Annotated[bool, typer.Option("--all", help="Also list the stages that are up to date.")] = False,
) -> None:
    """Show what `run` would do and why, what comes from the cache, and how long it should take."""
    from tasks.commands.plan_table import print_plan

    root = Path.cwd()
    paper, rows = split_names(root, names or [])
    full = full or names == [ALL]
    print_plan(root, paper, rows, seed or [], scale=scale, full=full, all_stages=all_stages)


@commands.command()
def times(
    paper: Annotated[str | None, typer.Argument(help="Show the stages of this paper only.")] = None,
    scale: Scale = "testbed",
) -> None:
    """Show the seconds of each kind of stage, and the overhead of the last run."""
    from tasks.graph.times import print_times

    print_times(Path.cwd(), scale, paper)


@commands.command()
def table(
    name: Annotated[str, typer.Argument(metavar="PAPER/N", help="The table, such as segment/1; or your own study.")],
    scale: Scale = "testbed",
    demo: Annotated[bool, typer.Option("--demo", help="The demo-sized results even where others exist.")] = False,
) -> None:
    """Print a table of a paper: published and measured side by side, with direction verdicts.

    The name of your own study (`params/my-study/rows.yaml`) sets its rows side by side: means over seeds.
    """
    from rlhf_core.published import printed_tables
    from tasks.graph.names import DEMO, FULL, made_tables
    from tasks.report.terminal import print_table

    if name not in printed_tables.PAPERS and page_files(Path("params", name), "rows"):
        from tasks.commands.compare import print_comparison

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
def atlas(
    out: Annotated[Path, typer.Option(help="Folder for atlas.html and atlas.md.")] = Path("report"),
) -> None:
    """Write the atlas: one page of all studies with their findings, and what was asked of the papers' claims."""
    from tasks.report.atlas_page import write_atlas

    print(f"atlas: {write_atlas(Path(), out).resolve()}")


@commands.command()
def hackability(
    flaw: Annotated[list[str] | None, typer.Option(help="Only this flaw (may be repeated).")] = None,
    mitigation: Annotated[list[str] | None, typer.Option(help="Only this mitigation (may be repeated).")] = None,
    seed: Seeds = None,
    function: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="A reward of your own: a Python callable.")
    ] = None,
    gives: Annotated[str, typer.Option(help="Values of the callable: sequence (one value), tokens.")] = "sequence",
    reward_model: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A reward of your own: a folder with a trained model/.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of your own reward in rows and on the page.")] = None,
    scale: Scale = "testbed",
    out: Annotated[Path, typer.Option(help="Folder for hackability.html and hackability.json.")] = Path("report"),
    train: Annotated[bool, typer.Option(help="Train missing rows, or show existing results only.")] = True,
    sync: Annotated[bool, typer.Option(help="Mirror the results into MLflow afterwards.")] = True,
    verbose: Verbose = False,
) -> None:
    """Find out whether a reward can be hacked, and which mitigation helps: one page.

    Trains a policy on each reward with each mitigation and measures, against the testbed's true rewards, how far the
    proxy rose and the true win rate fell, when that set in, and which clauses the policy wrote more of. Without a
    reward of your own: reward models of four annotators with a **known flaw**
    (`params/hackability/reward_models.yaml`). Mitigations are the variants in `params/hackability/rows.yaml`. Seed 0
    unless given.

    Examples: `rewardsmith hackability --mitigation vanilla --mitigation par` (every flaw, two mitigations) ·
    `rewardsmith hackability --flaw length` (one flaw, every mitigation) ·
    `rewardsmith hackability --function own_rewards:brevity` (a function of yours, from own_rewards.py here) ·
    `rewardsmith hackability --reward-model results/testbed/segment/reward_model/bandit/0/result` (a trained model).

    A mitigation that compares with reference rewards needs a reward model; with a function it is left out, and the
    page says so. What was trained is not trained again; the rows of your own reward are a page,
    `params/hackability/rows_<name>.yaml`.
    """
    from tasks.graph import laboratory
    from tasks.graph.dvc_files import matrix_folders
    from tasks.graph.dvc_files import write as write_graph

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
    paper: Annotated[str | None, typer.Argument(help="Mirror the results of this paper only.")] = None,
    scale: Scale = "testbed",
) -> None:
    """Mirror stage outputs into MLflow (MLFLOW_TRACKING_URI, else mlflow.db here); repeating it changes nothing.

    Look at the runs with `mlflow ui --backend-store-uri sqlite:///mlflow.db`.
    """
    from tasks.tracking import mirror as tracking

    known = papers_here(Path.cwd())
    join_platform(Path.cwd())
    if paper is not None and paper not in known:
        raise RecipeError(f"unknown paper '{paper}'{hint(paper, sorted(known), more=3)}")
    print(f"MLflow: {tracking.tracking_uri(Path.cwd()).split('@')[-1]}")
    for name in [paper] if paper else [name for name in known if Path("results", scale, name).is_dir()]:
        print(f"{name}: {tracking.sync(Path.cwd(), name, scale).line()}")


@commands.command()
def explain(
    prompt: Annotated[str | None, typer.Option(help="The prompt; '-' reads it from standard input.")] = None,
    response: Annotated[str | None, typer.Option(help="The response to colour.")] = None,
    model: Annotated[str, typer.Option(help="A reward model: its name, or the directory of its result.")] = "segment",
    rows: Annotated[
        list[str] | None, typer.Option(help="Compare these rows' credit of the same wrong solutions instead.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model.")] = 0,
    scale: Scale = "testbed",
) -> None:
    """Colour a response by the rewards that a trained reward model gives to its tokens and segments.

    Or compare the credit that rows trained on sampled solutions give to their tokens:
    `rewardsmith explain --rows math-rlmec --rows math-ppo-a2c --rows math-vanilla-ppo`.
    """
    from tasks.commands.explain import print_credit, print_explanation

    if rows:
        known = {path.name for path in Path("results", scale).glob("*/policy/*/")}
        print_credit(Path("results", scale), [present(name, known) for name in rows], seed)
        return
    if prompt is None or response is None:
        raise RecipeError("explain needs --prompt and --response, or --rows")
    folder = trained_reward_model(model, seed, scale)
    print_explanation(folder, sys.stdin.read() if prompt == "-" else prompt, response)


@commands.command(name="bench-reward")
def bench_reward(
    model: Annotated[
        str, typer.Argument(help="A trained reward model's name or result folder, or a Hugging Face classifier's.")
    ],
    data: Annotated[Path | None, typer.Option(help="Folder of the test sets; else REWARDSMITH_DATA.")] = None,
    sets: Annotated[str | None, typer.Option(help="Names, separated by commas; by default all.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Largest number of pairs of each set, evenly spaced.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model.")] = 0,
    scale: Scale = "testbed",
    batch: Annotated[int, typer.Option(min=1, help="Responses per forward pass.")] = 16,
    template: Annotated[str, typer.Option(help="Chat template of a Hugging Face model.")] = "tokenizer",
    prompt_tokens: Annotated[int, typer.Option(help="Longest prompt of a Hugging Face model.")] = 1728,
    total_tokens: Annotated[int, typer.Option(help="Longest prompt and response together.")] = 2048,
    out: Annotated[Path | None, typer.Option(help="Also write the scores to this JSON file.")] = None,
) -> None:
    """Accuracy of any reward model on real preference test sets, with 95 % intervals.

    Scores that depend on batch size or padding are refused first. Example:
    `rewardsmith bench-reward sentence/sentence --sets llmbar,hhh_alignment`.
    """
    from rlhf_core.data.truncation import Limits
    from tasks.commands import bench_reward as benching

    chosen = sets.split(",") if sets else list(benching.SETS)
    folder, limits = trained_reward_model(model, seed, scale), Limits(prompt_tokens, total_tokens)
    scores, cut = benching.bench_reward(
        folder, directory=data, sets=chosen, rows=rows, batch=batch, template=template, limits=limits
    )
    benching.print_scores(scores, cut)
    if out is not None:
        benching.write_scores(out, folder, scores, cut)


@commands.command()
def doctor(
    scale: Annotated[str | None, typer.Option(help="Check a scale without weights instead: small, paper.")] = None,
    deepspeed: Annotated[
        Path | None, typer.Option(help="Its DeepSpeed configuration; by default DDP in float32.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs, for --scale.")] = 8,
    gpu_memory: Annotated[float, typer.Option(help="GiB of each GPU, for --scale.")] = 80.0,
) -> None:
    """Check this machine for missing tools, or check that a scale fits some GPUs.

    Example: `rewardsmith doctor --scale paper --deepspeed infra/deepspeed/zero3-offload.json --gpus 8`.
    """
    if scale is not None:
        from tasks.graph.scale_check import report as measure

        raise typer.Exit(1 if measure(Path.cwd(), scale, deepspeed, gpus, gpu_memory) else 0)
    from tasks.commands.doctor import report as examine

    raise typer.Exit(1 if examine(Path.cwd()) else 0)


@commands.command()
def verify(
    write_reference: Annotated[
        bool, typer.Option("--write-reference", help="Make reference/demo.json from these results.")
    ] = False,
) -> None:
    """Compare the demo's results with the committed reference, within stated tolerances.

    Exits with 1 and the list of deviations when one is outside.
    """
    from tasks.commands.verify import main as compare

    raise typer.Exit(compare(["--write-reference"] if write_reference else []))


studies = typer.Typer(no_args_is_help=True, help="Registered questions, answered over independent worlds.")
commands.add_typer(studies, name="study")
StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="The name of studies/STUDY.yaml.")]


@studies.command(name="list")
def list_studies() -> None:
    """List the studies with their worlds and primary findings."""
    from tasks.commands.study import print_studies

    print_studies(Path.cwd())


@studies.command(name="plan")
def plan_study(name: StudyName) -> None:
    """Show the cells, rows and worlds of a study and what they should cost."""
    from tasks.commands.study import print_plan as print_study_plan

    print_study_plan(Path.cwd(), name)


@studies.command(name="run")
def run_study(
    name: StudyName,
    worlds: Annotated[int, typer.Option(min=1, help="How many of the worlds without a record.")] = 1,
    pilot: Annotated[
        list[int] | None, typer.Option(metavar="SEED", help="Seeds of tuning (100 to 199) instead.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the worlds' trees in .work/studies/.")] = False,
    verbose: Verbose = False,
) -> None:
    """Train the next worlds of a study, every row of every cell; interrupting is safe.

    A study must be committed first: the seeds of its worlds follow from its file. Each world leaves a record in
    `reference/studies/`; commit it. No verdict is shown before the last world.
    """
    from tasks.params.studies import study_file

    study_file(Path.cwd(), name)
    options = ["--worlds", str(worlds), *(["--pilot", *map(str, pilot)] if pilot else [])]
    raise typer.Exit(run_module("flows.study", [name, *options, *(["--keep"] if keep else [])], verbose=verbose))


@studies.command(name="show")
def show_study(name: StudyName) -> None:
    """Print the findings of a study, once all its worlds have run."""
    from tasks.commands.study import print_study

    print_study(Path.cwd(), name)


@commands.command()
def migrate() -> None:
    """Convert a tree with a file for each row, reward model and setting to pages; results of renamed rows move along.

    Commit first: files are replaced. `git diff` shows the changes.
    """
    from tasks.commands.migrate import print_migration

    print_migration(Path.cwd())


@commands.command()
def graph(
    matrix: Annotated[str | None, typer.Option(metavar="PAPER", help="Also write this paper's full matrix.")] = None,
    scale: Scale = "testbed",
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 when not current.")] = False,
) -> None:
    """Bring the dvc.yaml files up to date with params/ and the stages' versions.

    The matrix of a paper (`pipelines/<scale>/<paper>/dvc.yaml`) is written when `run` or `plan` first asks for it, or
    here with `--matrix`.
    """
    from tasks.graph.dvc_files import main as write_graph

    call = ["--matrix", matrix, "--scale", scale] if matrix else []
    raise typer.Exit(write_graph([*call, *(["--check"] if check else [])]))


def _python(*arguments: str) -> int:
    """Runs a module of the project in the repository; returns its exit status."""
    project = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [project, os.environ.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, "-P", "-m", *arguments], env={**os.environ, "PYTHONPATH": path}).returncode


@commands.command()
def tune(
    study: Annotated[str, typer.Argument(help="The study: studies/<name>.yaml.")],
    trials: Annotated[int, typer.Option(min=1, help="Points at which each row is tried.")] = 16,
    seed: Annotated[list[int] | None, typer.Option(help="A tuning seed, 100 to 199 (may be repeated).")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put the choices into the study's file.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the trials' weights in .work/tuning/.")] = False,
    verbose: Verbose = False,
) -> None:
    """Tune the rows of a study before it is registered: the same points for each, on tuning seeds.

    Search spaces: `params/tuning.yaml`. What was tried: `reference/tuning/<study>.json`; it is not tried again.
    Example: `rewardsmith tune credit --trials 16 --seed 100 --seed 101`. Seed 100 unless given.
    """
    join_platform(Path.cwd())
    show_progress(verbose)
    call = ["--trials", str(trials), *(word for one in seed or [] for word in ("--seed", str(one)))]
    call += [*(["--write"] if write else []), *(["--keep"] if keep else [])]
    raise typer.Exit(_python("flows.tune", study, *call))


@commands.command()
def up(
    prefect_port: Annotated[int | None, typer.Option(help="Port of Prefect; else 4200 or a free one.")] = None,
    mlflow_port: Annotated[int | None, typer.Option(help="Port of MLflow; else 5000 or a free one.")] = None,
    page_port: Annotated[int | None, typer.Option(help="Port of the page; else 4300 or a free one.")] = None,
) -> None:
    """Start the platform on this machine: Prefect with a worker, MLflow, and a page that links them and the report.

    Run again, it starts missing servers and cleans up after killed processes. `rewardsmith down` stops it. Servers
    listen on this machine only; user and password are generated (`.work/platform/credentials.json`).
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
    seed: Annotated[int, typer.Option(help="Seed of its result.")] = 0,
    alias: Annotated[str, typer.Option(help="The alias to set.")] = "champion",
) -> None:
    """Point an alias of the model registry at a result; re-evaluation follows it."""
    from tasks.tracking import mirror as tracking

    join_platform(Path.cwd())
    found = tracking.open_registry(Path.cwd()).promote(name, alias, seed)
    print(f"{name}@{alias} is version {found.version}: {found.path} ({found.digest[:12]})")


@commands.command()
def adopt(name: Annotated[str, typer.Argument(help="The recipe, as named in the form.")]) -> None:
    """Add a recipe that ran from the Prefect form to this tree as a row."""
    raise typer.Exit(_python("flows.recipe", name))


def app() -> None:
    """Runs the command line: an error of the user's prints one line and exits with 2."""
    try:
        commands()
    except (RewardsmithError, *PATH_ERRORS) as error:
        message = str(path_error(error) if isinstance(error, OSError) else error)
        print(f"error: {message.replace(f'{Path.cwd()}/', '')}", file=sys.stderr)
        sys.exit(USER_ERROR)


if __name__ == "__main__":
    app()
