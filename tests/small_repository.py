"""A repository with the project's graph and stand-in stages that take no time: for tests of the platform.

Rows, reward models and settings are valid; those of the scales are the testbed's own. The stand-ins read the files
they are given, write `result/` and `record/` and obey a row's `notes`: `behaviour: data-error` exits with 2, `crash`
with 1, `flaky` with 75 the first time, `stop` leaves a stop as its result, `alarm` a policy's hacking alarm. While
`.work/refuse-<stage>` exists, that stage exits with 2.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tasks.graph import dvc_files as graph
from tasks.params.pages import read_settings
from tasks.params.scales import scale_entries

PROJECT = Path(__file__).resolve().parent.parent
STAND_IN = """
import argparse, hashlib, json, os, sys, time

import yaml
from pathlib import Path

def settings(address):
    file, _, key = str(address).partition(".yaml:")
    content = yaml.safe_load(Path(file + ".yaml").read_text())
    return {**content.get("base", {}), **content[key]}

def digest(path):
    if ".yaml:" in str(path):
        return hashlib.sha256(json.dumps(settings(path), sort_keys=True).encode()).hexdigest()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()

def run(stage):
    parser = argparse.ArgumentParser()
    names = ("spec", "scale", "row", "evaluation", "data", "tokenizer", "sft", "entropies", "reward-model",
             "normaliser", "references", "paper", "results", "graph", "rows", "seeds", "seed", "world", "out",
             "stage-version")
    several = ("rows", "seeds", "reward-model", "normaliser", "references")
    for name in names:
        parser.add_argument(f"--{name}", **({"nargs": "*", "default": []} if name in several else {}))
    options = vars(parser.parse_args())
    one = ("spec", "row", "scale", "evaluation", "data", "tokenizer", "sft", "entropies")
    named = [options[n] for n in one if options[n]] + options["reward_model"] + options["normaliser"]
    named += options["references"]
    inputs = [Path(path) for path in named if ".yaml:" in path or Path(path).exists()]
    if stage == "tables":
        results = Path(options["results"])
        inputs = sorted(p for p in results.glob("segment/policy/*/*/result") if p.parts[4] in options["rows"])
    address = options["row"] or options["spec"]
    text = str(settings(address).get("notes", "")) if address else ""
    work = Path(".work"); work.mkdir(exist_ok=True)
    with (work / "calls").open("a") as calls:
        calls.write(f"{stage} {options['out']} {os.environ.get('OMP_NUM_THREADS')} "
                    f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {time.time()}\\n")
    print(f"{stage} at work", flush=True)
    if "behaviour: data-error" in text or (work / f"refuse-{stage}").exists():
        print("error: file x.jsonl, row 3, field 'prompt': empty", file=sys.stderr); sys.exit(2)
    if "behaviour: crash" in text:
        raise ValueError("boom")
    if "behaviour: flaky" in text and not (work / "tried").exists():
        (work / "tried").touch(); sys.exit(75)
    time.sleep(float(os.environ.get("STAND_IN_SECONDS", "0")))
    out = Path(options["out"])
    (out / "result").mkdir(parents=True, exist_ok=True); (out / "record").mkdir(exist_ok=True)
    total = hashlib.sha256(repr([digest(p) for p in inputs] + [options["seed"], options["rows"]]).encode()).hexdigest()
    value = int(total[:6], 16) / 0xFFFFFF
    metrics = {"true_reward": value, "win_rate_vs_sft": value, "alpaca_wr": 100 * value}
    (out / "result" / "metrics.json").write_text(json.dumps(metrics))
    if stage == "policy":
        rows = [{"step": s, "kl": value * s, "proxy_reward": value + s, "reward/segment": value,
                 "true_reward": value} for s in range(5)]
        (out / "result" / "history.jsonl").write_text("".join(json.dumps(r) + "\\n" for r in rows))
        row = {"benchmark": "alpaca", "id": "1", "turn": 0, "prompt": "Hi", "response": "<script>", "n_chars": 8,
               "n_tokens": 3, "true_reward": value}
        (out / "result" / "generations.jsonl").write_text(json.dumps(row) + "\\n")
        rollout = {"step": 1, "id": "1", "tokens": ["a"], "rewards": [value], "advantages": [0.0],
                   "breakdown": {"segment": [value]}, "true_reward": value}
        (out / "result" / "rollouts.jsonl").write_text(json.dumps(rollout) + "\\n")
        alarm = {"step": 3, "kind": "kl", "since": 1, "message": "kl is 9, above 8"}
        rang = "behaviour: alarm" in text
        (out / "result" / "alarms.jsonl").write_text(json.dumps(alarm) + "\\n" if rang else "")
        phases = [{"step": s, "update_tokens_per_second": 100.0 * s} for s in (1, 2)]
        (out / "record" / "phases.jsonl").write_text("".join(json.dumps(r) + "\\n" for r in phases))
        if rang:
            (out / "result" / "metrics.json").write_text(json.dumps(metrics | {"hacking_onset": 3}))
        (out / "result" / "model").mkdir(exist_ok=True)
        (out / "result" / "model" / "model.safetensors").write_bytes(b"weights")
    if stage == "tables":
        curves = "row,seed,step,metric,value\\nsegment,0,0,kl,0.1\\nsegment,0,1,kl,0.2\\n"
        (out / "result" / "curves.csv").write_text(curves)
        (out / "result" / "tables.json").write_text("{}")
    if stage in ("sft", "policy", "reward_model", "tables"):
        (out / "headline.json").write_text(json.dumps({"win_rate_vs_sft": value}))
    if "behaviour: stop" in text:
        (out / "result" / "metrics.json").unlink()
        stop = {"reason": "0.51 are right, below 0.6", "metrics": {}}
        (out / "result" / "stopped.json").write_text(json.dumps(stop))
    record = {"stage": stage, "version": int(options["stage_version"]), "seconds": 1.5, "started": time.time(),
              "commit": "0" * 40, "inputs": {p.as_posix(): digest(p) for p in inputs}}
    (out / "record" / "record.json").write_text(json.dumps(record))
"""


def command(*arguments: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of this Python's environment in the repository; a failure fails the test."""
    process = subprocess.run(
        arguments, cwd=root, env=clean_environment(**environment), capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process


def clean_environment(**extra: str) -> dict[str, str]:
    binaries = Path(sys.executable).parent
    switches = {"DVC_NO_ANALYTICS": "true", "DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    switches |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    return {**os.environ, **switches, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", **extra}


def begin_repository(root: Path, *, dvc: bool = False) -> None:
    """Makes a folder a repository of git, and of DVC."""
    root.mkdir(parents=True, exist_ok=True)
    command("git", "init", "-q", root=root)
    for name in ("user.email", "user.name"):
        command("git", "config", name, "test@example.org", root=root)
    if dvc:
        command(sys.executable, "-m", "dvc", "init", "-q", root=root)


class _Plain(yaml.SafeDumper):
    """YAML without anchors, which a change of one entry's value would break."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_yaml(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.dump(dict(value), Dumper=_Plain), encoding="utf-8")


def set_entry(page: Path, name: str, values: Any) -> None:
    """Sets an entry of a page, which need not be there yet."""
    content = yaml.safe_load(page.read_text(encoding="utf-8")) if page.exists() else {}
    write_yaml(page, {**content, name: values})


def change_entry(page: Path, name: str, **changes: Any) -> None:
    """Changes settings of an entry; None takes one away."""
    entry = yaml.safe_load(page.read_text(encoding="utf-8"))[name] | changes
    set_entry(page, name, {field: value for field, value in entry.items() if value is not None})


def reward_row(reward_model: str, backbone: str = "phi3-mini", **more: Any) -> dict[str, Any]:
    """Returns a row that reads one value of each response."""
    row = {"title": reward_model, "kind": "reward", "backbone": backbone, "reward_model": reward_model}
    row |= {"readout": {"segmenter": {"kind": "bandit"}, "read": "aggregate"}, "credit": "last_token"}
    return {**row, "optimiser": {"kind": "ppo"}, **more}


def reward_model(title: str, backbone: str = "phi3-mini", **more: Any) -> dict[str, Any]:
    """Returns a reward model of whole responses."""
    spec = {"title": title, "backbone": backbone, "segmenter": {"kind": "bandit"}, "aggregation": "mean"}
    return {**spec, "loss": "bradley_terry", **more}


def scale_entry(kind: str, name: str) -> dict[str, Any]:
    """Returns an entry of the testbed's own pages."""
    return read_settings(scale_entries(PROJECT, "testbed", kind)[name].under(PROJECT))


BACKBONE = scale_entry("backbones", "phi3-mini")
DEFAULT_ROWS: Mapping[str, Mapping[str, Any]] = {
    "bandit": reward_row("bandit"),
    "segment": reward_row("segment", optimiser={"kind": "ppo", "value_clip": 0.25}),
    "segment-as-bandit": reward_row("segment", title="Segment as bandit"),
    "dpo": {"title": "DPO", "kind": "supervised", "backbone": "phi3-mini", "optimiser": {"kind": "dpo"}},
}


def create(
    root: Path,
    *,
    rows: Mapping[str, Mapping[str, Any]] = DEFAULT_ROWS,
    demo: Sequence[str] = ("phi3-mini", "bandit", "segment"),
    seeds: Sequence[int] = (0, 1),
    suite_seeds: Sequence[int] = (0, 1, 2),
    scales: Sequence[str] = ("testbed",),
) -> Path:
    """Writes such a repository, with its graph files, git and DVC, and returns its root."""
    key = json.dumps([rows, demo, seeds, suite_seeds, scales])
    if key not in _MADE:
        template = Path(_TEMPLATES.name) / str(len(_MADE))
        _write(template, rows, demo, seeds, suite_seeds, scales)
        _MADE[key] = template
    return Path(shutil.copytree(_MADE[key], root, symlinks=True, dirs_exist_ok=True))


#: Repositories that this process has made, by their options: a copy takes a fiftieth of the time.
_MADE: dict[str, Path] = {}
_TEMPLATES = tempfile.TemporaryDirectory(prefix="small-repository-")


def _write(
    root: Path,
    rows: Mapping[str, Mapping[str, Any]],
    demo: Sequence[str],
    seeds: Sequence[int],
    suite_seeds: Sequence[int],
    scales: Sequence[str],
) -> None:
    for scale in scales:
        folder = root / "params" / "scales" / scale
        names: dict[str, tuple[str, ...]] = dict.fromkeys(("data", "tokenizers", "evaluation"), ("dialogue",))
        names |= {"policy": ("ppo", "dpo"), "stages": ("entropies", "reward_model", "normaliser", "references")}
        for kind, of in names.items():
            write_yaml(folder / f"{kind}.yaml", {name: scale_entry(kind, name) for name in of})
        write_yaml(folder / "backbones.yaml", dict.fromkeys({row["backbone"] for row in rows.values()}, BACKBONE))
    write_yaml(root / "params" / "segment" / "rows.yaml", rows)
    models = {row["reward_model"]: row["backbone"] for row in rows.values() if "reward_model" in row}
    specs = {name: reward_model(name, backbone) for name, backbone in models.items()}
    write_yaml(root / "params" / "segment" / "reward_models.yaml", specs)
    demo_part = {"segment": {"seeds": list(seeds), "rows": list(demo)}}
    suite = {"seeds": list(suite_seeds), "scale_seeds": {"default": [0]}}
    write_yaml(root / "params.yaml", {"demo": demo_part, "suite": suite})
    (root / "pyproject.toml").write_text('[project]\nname = "rewardsmith"\n')  # whose own tasks/ the stages run
    (root / "tasks").mkdir()
    (root / "tasks" / "__init__.py").touch()
    (root / "tasks" / "stand_in.py").write_text(STAND_IN)
    for stage in graph.STAGES:
        text = f'from tasks.stand_in import run\n\nVERSION = 1\nrun("{stage}")\n'
        (root / "tasks" / f"{stage}.py").write_text(text)
    (root / ".gitignore").write_text("results/\n.work/\nmlflow.db\n__pycache__/\nmlruns/\n")
    graph.write(root)
    begin_repository(root, dvc=True)
    shutil.copytree(PROJECT / ".dvc" / "plots", root / ".dvc" / "plots", dirs_exist_ok=True)
    command("git", "add", "-A", root=root)
    command("git", "commit", "-qm", "start", root=root)
