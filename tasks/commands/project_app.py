"""Commands of a project's files and its machine: `rewardsmith init`, `doctor` and `graph`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tasks.commands.options import Scale
from tasks.graph.names import known_scale


def init(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make; its name is that of the rows.")],
    model: Annotated[str, typer.Option(help="A Hugging Face model: folder or hub id.")],
    data: Annotated[list[Path], typer.Option(metavar="FILE", help="Preference pairs (may be repeated).")],
    reward: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="A reward of your own: a Python callable.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="OURS=THEIRS", help="A column's name, as in chosen=better.")
    ] = None,
    template: Annotated[str, typer.Option(help="Chat template; the model's own by default.")] = "tokenizer",
) -> None:
    """Make a project of your own: a model, preference pairs, an idea for a reward, and three rows to compare.

    Reads TRL's pairs, UltraFeedback's and HH-RLHF's from JSON Lines, JSON or Parquet files. Files with `test` in their
    name are held out, else a tenth of the prompts. Sizes are chosen for the GPU that is found, or the CPU. Everything
    is checked before the folder is made ([quickstart](docs/quickstart.md)).

    Example: `rewardsmith init my-study --model Qwen/Qwen2.5-0.5B-Instruct --data pairs.jsonl
    --reward my_rewards:brevity`.
    """
    from tasks.commands.init import make_project, parse_columns

    make_project(folder, model, data, reward, parse_columns(column or []), template)


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
    from tasks.commands.doctor import report, report_scale

    if scale is not None:
        known_scale(scale)
        raise typer.Exit(1 if report_scale(Path.cwd(), scale, deepspeed, gpus, gpu_memory) else 0)
    raise typer.Exit(1 if report(Path.cwd()) else 0)


def graph(
    matrix: Annotated[str | None, typer.Option(metavar="PAPER", help="Also write this paper's full matrix.")] = None,
    scale: Scale = "testbed",
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 when not current.")] = False,
) -> None:
    """Bring the dvc.yaml files up to date with params/ and the stages' versions.

    The matrix of a paper (`pipelines/<scale>/<paper>/dvc.yaml`) is written when `run` or `plan` first asks for it, or
    here with `--matrix`.
    """
    from tasks.graph.dvc_files import check_graph, matrix_folders, update_graph

    root = Path.cwd()
    if not check:
        update_graph(root, matrix_folders(scale, matrix) if matrix else ())
    elif changed := check_graph(root):
        print(f"not current: {', '.join(map(str, changed))}; run `rewardsmith graph`", file=sys.stderr)
        raise typer.Exit(1)
