"""Seconds of a `dvc repro` and a `dvc status` that find nothing to do, at 100, 300 and 1,000 stages.

    python benchmarks/dvc_noop.py [--stages 100 300 1000] [--repeats 3] [--out .work/benchmarks]

The temporary repository has the project's shape: one small row file per stage as a dependency, stages made by
`foreach` over a mapping that `vars:` loads. Beside it the shape that the project avoids: the same stages reading
their values from one big params.yaml. Prints a table; writes dvc_noop.csv and dvc_noop.png.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

SHAPES = ("row files", "one params.yaml")


def call(root: Path, *arguments: str) -> float:
    """Runs DVC in the repository and returns its wall seconds."""
    environment = {**os.environ, "DVC_NO_ANALYTICS": "true", "DO_NOT_TRACK": "true"}
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - started


def make_repository(root: Path, stages: int, shape: str) -> None:
    """A repository whose stages have all run: the lock file and outputs are written, not trained."""
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    call(root, "init", "-q")
    names = [f"row-{number:04d}" for number in range(stages)]
    (root / "rows").mkdir()
    (root / "results").mkdir()
    for name in names:
        (root / "rows" / f"{name}.yaml").write_text(f"learning_rate: 0.001\nname: {name}\n", encoding="utf-8")
    mapping = {name: {"row": f"rows/{name}.yaml", "out": f"results/{name}"} for name in names}
    (root / "graph.yaml").write_text(yaml.safe_dump({"policy": mapping}), encoding="utf-8")
    stage: dict[str, object] = {"cmd": "cp ${item.row} ${item.out}", "outs": ["${item.out}"]}
    if shape == SHAPES[0]:
        stage["deps"] = ["${item.row}"]
    else:
        values = {name: {"learning_rate": 0.001, "clip": 0.2, "seed": 0} for name in names}
        (root / "params.yaml").write_text(yaml.safe_dump({"rows": values}), encoding="utf-8")
        stage["params"] = ["rows.${key}"]
    pipeline = {"vars": ["graph.yaml"], "stages": {"policy": {"foreach": "${policy}", "do": stage}}}
    (root / "dvc.yaml").write_text(yaml.safe_dump(pipeline), encoding="utf-8")
    for name in names:
        (root / "results" / name).write_bytes((root / "rows" / f"{name}.yaml").read_bytes())
    call(root, "commit", "-q", "-f")


def measure(stages: int, shape: str, repeats: int) -> dict[str, float | int | str]:
    """Medians of the no-op times of one shape at one size."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_repository(root, stages, shape)
        call(root, "repro", "-q")
        repro = statistics.median(call(root, "repro", "-q") for _ in range(repeats))
        status = statistics.median(call(root, "status", "-q") for _ in range(repeats))
    return {"shape": shape, "stages": stages, "repro_seconds": round(repro, 2), "status_seconds": round(status, 2)}


def draw(rows: list[dict[str, float | int | str]], path: Path) -> None:
    """The no-op's time over the number of stages, one line a shape."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for shape in dict.fromkeys(str(row["shape"]) for row in rows):
        points = [(float(r["stages"]), float(r["repro_seconds"])) for r in rows if r["shape"] == shape]
        axes.plot(*zip(*points, strict=True), marker="o", label=shape)
    axes.set(xlabel="stages", ylabel="seconds of a no-op dvc repro", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stages", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(".work/benchmarks"))
    parser.add_argument("--project-shape-only", action="store_true", help="leave the big params.yaml out")
    options = parser.parse_args(arguments)
    shapes = SHAPES[:1] if options.project_shape_only else SHAPES
    rows = []
    print(f"{'shape':<18}{'stages':>8}{'repro s':>10}{'status s':>10}")
    for shape in shapes:
        for stages in options.stages:
            row = measure(stages, shape, options.repeats)
            rows.append(row)
            print(f"{shape:<18}{stages:>8}{row['repro_seconds']:>10}{row['status_seconds']:>10}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "dvc_noop.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, options.out / "dvc_noop.png")
    print(f"wrote {options.out / 'dvc_noop.csv'} and {options.out / 'dvc_noop.png'}")


if __name__ == "__main__":
    main()
