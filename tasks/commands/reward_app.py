"""Commands that examine a reward: `rewardsmith hackability`, `try-reward`, `explain` and `bench-reward`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlhf_core.errors import RecipeError
from tasks.commands.options import Scale, Seeds, Verbose
from tasks.commands.processes import run_flow
from tasks.graph.names import trained_reward_model


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
    out: Annotated[Path, typer.Option(help="Folder for hackability.html.")] = Path("report"),
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
    from rlhf_core.user_code import import_callable
    from tasks.graph import laboratory
    from tasks.graph.dvc_files import matrix_folders
    from tasks.graph.dvc_files import write as write_graph

    root, seeds = Path.cwd(), seed or [0]
    page = laboratory.laboratory_page(root)
    names = laboratory.chosen(mitigation or [], [*page.entries], "mitigation")
    if function is None and reward_model is None:
        rewards = [laboratory.rows_of(root, each, names) for each in laboratory.chosen(flaw or [], page.each, "flaw")]
    else:
        own = laboratory.OwnReward(name or laboratory.own_name(function, reward_model), function, reward_model, gives)
        if function is not None:
            import_callable(function, "reward function")
        rewards = [laboratory.rows_of(root, own.name, names, own)]
        rewards += [laboratory.rows_of(root, each, names) for each in flaw or []]
        if own.model is not None:
            laboratory.check_words(root, scale, own, seeds)
    status = 0
    if train:
        write_graph(root, matrix_folders(scale, laboratory.LABORATORY))
        rows = [row for reward in rewards for row in reward.rows.values()]
        choice = {"paper": laboratory.LABORATORY, "scale": scale, "rows": rows, "seeds": list(seeds)}
        status = run_flow("paper", {**choice, "report": False, "sync": sync}, verbose=verbose)
    from tasks.report.hackability import compare, write_comparison

    print(f"report: {write_comparison(compare(root, scale, rewards, names, seeds), out).resolve()}")
    raise typer.Exit(status)


def try_reward(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="A reward of your own.")],
    rows: Annotated[int, typer.Option(min=2, help="Rollouts to try it on.")] = 8,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows to try it on: prompt and response, or preference pairs.")
    ] = None,
    scale: Scale = "testbed",
) -> None:
    """Apply a reward function to a few rollouts in seconds: prompt, response, reward, correlation with length.

    Rollouts are those of the newest policy in results/, unless rows are given. A wrong shape, NaN, text or an error in
    the function is said in one line.

    Example: `rewardsmith try-reward my_rewards:brevity --rows 12`.
    """
    from tasks.commands.try_reward import print_tried_reward
    from tasks.graph.names import refuse_other_folder

    if prompts is None:
        refuse_other_folder(Path.cwd())
    print_tried_reward(Path.cwd(), scale, function, rows, prompts)


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
        print_credit(Path("results", scale), rows, seed)
        return
    if prompt is None or response is None:
        raise RecipeError("explain needs --prompt and --response, or --rows")
    folder = trained_reward_model(model, seed, scale)
    print_explanation(folder, sys.stdin.read() if prompt == "-" else prompt, response)


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
    prompt_tokens: Annotated[
        int | None, typer.Option(help="Longest prompt of a Hugging Face model; else 27/32 of the total.")
    ] = None,
    total_tokens: Annotated[
        int | None, typer.Option(help="Longest prompt and response together; else as many as the model reads.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the scores to this JSON file.")] = None,
) -> None:
    """Accuracy of any reward model on real preference test sets, with 95 % intervals.

    Scores that depend on batch size or padding are refused first. Example:
    `rewardsmith bench-reward sentence/sentence --sets llmbar,hhh_alignment`.
    """
    from tasks.commands import bench_reward as benching
    from tasks.running.artifacts import write_json

    chosen = sets.split(",") if sets else list(benching.SETS)
    folder = trained_reward_model(model, seed, scale)
    scores, cut = benching.bench_reward(
        folder, chosen, directory=data, rows=rows, batch=batch, template=template, prompt=prompt_tokens,
        total=total_tokens,
    )  # fmt: skip
    benching.print_scores(scores, cut)
    if out is not None:
        write_json(out, {"model": str(folder), "cut": cut, "scores": [score._asdict() for score in scores]})
