"""Published benchmarks on a trained policy, without a run of its paper.

    python -m tasks.commands.benchmark --policy results/testbed/shared/sft/phi3-mini/0/result \
        --data results/testbed/shared/prepare/dialogue/result --only arc --rows 20 --out measured-arc

Writes into --out what the policy's own stage would write: metrics.json, benchmarks.json, generations.jsonl and
judgements.jsonl. A benchmark that a judge decides (alpaca, arena, mtbench) has only its lengths without --judge, which
asks the endpoint of REWARDSMITH_JUDGE_URL and REWARDSMITH_JUDGE_MODEL.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlhf_core.errors import RecipeError, hint
from tasks.params.data import RealSpec, data_spec
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address, read_settings
from tasks.running.artifacts import read_json, write_json, write_jsonl
from tasks.running.stage import run_main

#: Data spec whose benchmarks are measured where none is named: copies in the folder of REWARDSMITH_DATA.
LOCAL = "params/scales/hh/data.yaml:benchmarks"
JUDGE = {
    "kind": "endpoint",
    "base_url": "${REWARDSMITH_JUDGE_URL}",
    "model": "${REWARDSMITH_JUDGE_MODEL}",
    "api_key_variable": "REWARDSMITH_JUDGE_KEY",
}


def chosen(spec: RealSpec, names: Sequence[str]) -> RealSpec:
    """Returns the spec with some of its benchmarks.

    Raises:
        RecipeError: a name that it does not have.
    """
    known = (*spec.benchmarks, *spec.tasks, *spec.code)
    for name in names:
        if name not in known:
            raise RecipeError(f"--only names '{name}', which is not a benchmark of the data spec{hint(name, known)}")
    parts = {part: getattr(spec, part) for part in ("benchmarks", "references", "official_items", "tasks", "code")}
    own: dict[str, Any] = {
        part: {name: value for name, value in values.items() if name in names} for part, values in parts.items()
    }
    window = spec.livecode_window if "livecode" in names else {}
    return replace(spec, alpaca_calibration=None, livecode_window=window, **own)


def prepared(spec: RealSpec, own: dict[str, Any], folder: Path) -> None:
    """Writes the benchmarks of a spec as a data set in the template and limits of the policy's own data."""
    from tasks.data_specs.benchmarks import code_benchmarks, dialogue_benchmarks, harness_rows
    from tasks.data_specs.data_sets import source_of

    source = source_of(spec, folder / "quarantine")
    made = [dialogue_benchmarks(spec, source), code_benchmarks(spec, source), harness_rows(spec)]
    for sets, _ in made:
        for name, rows in sets.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_jsonl(folder / f"{name}.jsonl", rows)
    facts = {"source": spec.source, "template": own["template"], "limits": own["limits"]}
    write_json(folder / "data.json", facts | {"benchmarks": {k: v for _, found in made for k, v in found.items()}})


def measure(policy: Path, data: Path, spec: RealSpec, config: EvaluationConfig, out: Path) -> dict[str, float]:
    """Returns the metrics of a spec's benchmarks on a policy; writes them with answers and verdicts."""
    from tasks.evaluating.benchmarks import write_benchmarks
    from tasks.evaluating.policies import Evaluator
    from tasks.running.loading import load_encoder, load_judge, load_policy

    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        prepared(spec, read_json(data / "data.json"), Path(folder))
        if (Path(folder) / "quarantine").exists():
            shutil.copytree(Path(folder) / "quarantine", out / "quarantine", dirs_exist_ok=True)
        encoder = load_encoder(Path(folder), policy / "model")
        evaluator = Evaluator(Path(folder), encoder, config, load_judge(config.judge, None), None)
        found = evaluator.evaluate(load_policy(policy / "model", encoder))
    write_json(out / "metrics.json", found.metrics)
    write_benchmarks(out, found.benchmarks)
    write_jsonl(out / "generations.jsonl", found.generations)
    write_jsonl(out / "judgements.jsonl", found.judgements)
    return found.metrics


def main(arguments: list[str] | None = None) -> None:
    """Measures what the command line names, and prints metrics and what they were measured on."""
    parser = argparse.ArgumentParser(prog="python -m tasks.commands.benchmark", description=__doc__.splitlines()[0])
    parser.add_argument("--policy", type=Path, required=True, help="result of sft or policy, with its model")
    parser.add_argument("--data", type=Path, required=True, help="result of prepare that the policy was trained on")
    parser.add_argument(
        "--only", nargs="+", required=True, help="benchmarks: alpaca, mtbench, arc, gsm8k, mbpp_plus, ..."
    )
    parser.add_argument("--spec", type=Address, default=Address(LOCAL), help="data spec that names them")
    parser.add_argument("--rows", type=int, help="the most items of each, all without it")
    parser.add_argument("--tokens", type=int, default=512, help="longest answer")
    parser.add_argument("--batch", type=int, default=16, help="prompts in a batch")
    parser.add_argument("--judge", action="store_true", help="ask the judge of REWARDSMITH_JUDGE_URL")
    parser.add_argument("--out", type=Path, required=True, help="folder for the numbers")
    given = parser.parse_args(arguments)
    spec = data_spec(read_settings(given.spec), given.spec)
    if not isinstance(spec, RealSpec):
        raise RecipeError(f"{given.spec}: source '{spec.source}' has no published benchmarks; name a spec of real data")
    config = EvaluationConfig(
        max_new_tokens=given.tokens, task_tokens=given.tokens, temperature=0.7, batch=given.batch, rows=given.rows,
        judge=JUDGE if given.judge else None,
    )  # fmt: skip
    metrics = measure(given.policy, given.data, chosen(spec, given.only), config, given.out)
    print(json.dumps({"metrics": metrics, "measured on": read_json(given.out / "benchmarks.json")}, indent=1))


if __name__ == "__main__":
    run_main(main)
