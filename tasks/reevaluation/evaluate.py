"""Evaluates a model again where something changed, and compares it with the last time.

    python -m tasks.reevaluation.evaluate --settings params/reevaluation.yaml --name segment-policy-segment \
        --alias champion --version 3 --digest <sha256> --result results/testbed/segment/policy/segment/0/result

0. Records that DVC has and the tree lacks are restored first. A result that the tree no longer holds is restored
   from the commit that it was made at, or a later one; benchmarks and judge are the tree's present ones.
1. It runs when the model, a benchmark (its items, or how they are answered) or the judge changed since the last
   record, or a drift check is due.
2. Answers are generated and judged as the stages do it, by an endpoint through its cache of answers, so that no text is
   judged twice. The canary, a fixed set of comparisons, is judged past the cache: what changes there is the judge.
3. Each benchmark is compared with the last record of the same benchmark and judge, over the same items, with an
   interval corrected for the number of benchmarks. A regression is an interval below 0. Too few verdicts that can be
   parsed say nothing about the model: an alert of their own.
4. A record is appended in reevaluations/<name>@<alias>/; records are never changed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from rlhf_core.errors import DataError, RecipeError, prints_errors
from rlhf_core.evaluation.judges import templates
from rlhf_core.evaluation.judges.games import recorded_game
from rlhf_core.evaluation.statistics import change, wilson_interval
from rlhf_core.services import digest as request_digest
from rlhf_core.typed import typed
from tasks.params.evaluation import EvaluationConfig, ReevaluationSettings, read_reevaluation
from tasks.params.pages import Address, read_settings
from tasks.params.yaml_files import write_whole
from tasks.reevaluation.history import records, records_folder, restore_records, restore_result
from tasks.running.artifacts import digest, read_json, read_jsonl, write_json
from tasks.running.locks import only_one
from tasks.running.result_digests import RECORD

if TYPE_CHECKING:
    from rlhf_core.evaluation.judges.templates import Judge
    from tasks.evaluating.policies import Evaluator
    from tasks.running.result_rows import Generation, Judgement

CACHE = Path(".judge-cache") / "reevaluation.jsonl"
#: Share of verdicts on the canary that must be as at first, and of a benchmark's that must be parsed (by the interval's
#: upper end).
AGREEMENT = 0.8
#: The reason for judging the canary alone: the record has the benchmarks of the record before it.
DRIFT_CHECK = "a drift check is due"


def inputs_of(result: Path) -> dict[str, Path]:
    """Returns the paths of data, SFT model and evaluation settings that the record of a policy's result names.

    Raises:
        DataError: a result without the record of a policy.
    """
    file = result.parent / RECORD
    found: dict[str, Path] = {}
    for path in map(Path, read_json(file).get("inputs", {})):
        # results/<scale>/shared/data/<name>/result, params/scales/<scale>/evaluation.yaml:<name>
        page = Address(path).file
        names = {*path.parts[-4:-1], *([page.stem.split("_")[0]] if page.suffix == ".yaml" else [])}
        found |= {part: path for part in ("data", "sft", "evaluation") if part in names}
    if missing := {"data", "sft", "evaluation"} - found.keys():
        problem = f"names no {', '.join(sorted(missing))} among its inputs"
        raise DataError(problem, file=str(file), remedy="Only policies are evaluated again")
    return found


def benchmark_digests(data: Path, names: Sequence[str], spec: EvaluationConfig) -> dict[str, str]:
    """Returns the identity of each benchmark of the data set: its items and its settings of answering."""
    files = {name: data / "benchmarks" / f"{name}.jsonl" for name in names}
    found = {
        name: request_digest({"items": digest(file), "answers": spec.dialogue_answers()})
        for name, file in files.items()
        if file.exists()
    }
    if not found:
        raise DataError("has none of the requested benchmarks", file=str(data), remedy=f"Asked: {', '.join(names)}")
    return found


def reasons(
    last: Mapping[str, Any] | None,
    *,
    model: str,
    benchmarks: Mapping[str, str],
    judge: str,
    now: float,
    drift_days: float,
) -> list[str]:
    """Returns the reasons to evaluate now, compared with the last record; empty if nothing is to be done."""
    if last is None:
        return ["first evaluation"]
    found = ["the model changed"] if last["digest"] != model else []
    known = {name: last["benchmarks"].get(name, {}) for name in benchmarks}
    found += [f"benchmark {name} changed" for name, one in known.items() if one.get("digest") != benchmarks[name]]
    found += [f"benchmark {name} has no verdicts" for name, one in known.items() if one.get("scores") == {}]
    found += ["the judge changed"] if last["judge"]["digest"] != judge else []
    if not found and now - last["time"] >= drift_days * 86400:
        found.append(DRIFT_CHECK)
    return found


def scores(judgements: Sequence[Judgement]) -> dict[str, float]:
    """Returns the mean score of each item, higher is better: preference 0 to 1, share of points 0 to 1, or rating 1 to
    10; items whose verdicts cannot be parsed have none."""
    found: dict[str, list[float]] = {}
    for row in judgements:
        if row["benchmark"] == "mtbench":
            value = row["value"]
        elif row["label"] is None:
            value = None if row["preference"] is None else row["preference"] - 1
        else:
            value = recorded_game(row).score_for_model
        if row["valid"] and value is not None and math.isfinite(value):
            found.setdefault(row["id"], []).append(value)
    return {item: mean(values) for item, values in found.items()}


def canary(folder: Path, sft: Path, size: int) -> list[Generation]:
    """Returns the comparisons, chosen once: the SFT model's answers to the first prompts against the baseline's."""
    path = folder / "canary.json"
    if path.exists():
        found: list[Generation] = read_json(path)
        return found
    rows = [
        {key: row[key] for key in ("id", "prompt", "response", "baseline", "meta")}
        for row in read_jsonl(sft / "generations.jsonl")
        if row["benchmark"] == "alpaca" and row["response"] != row.get("baseline")
    ][:size]
    if len(rows) < 2:
        raise DataError("has fewer than two comparisons for the canary", file=str(sft))
    write_whole(path, json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return rows  # type: ignore[return-value]


def drift(asked: int, now: Mapping[str, float], before: Mapping[str, float] | None, level: float) -> dict[str, Any]:
    """Returns the canary's scores by item now against those of the first time that this judge judged it (`before`, None
    or empty then); a verdict that cannot be parsed any more is one that differs."""
    found: dict[str, Any] = {"scores": dict(now), "unparsable": asked - len(now)}
    if not before:
        return found | {"verdict": "first"}
    agreed = sum(item in now and (before[item] > 0.5) == (now[item] > 0.5) for item in before)
    compared = change(before, now, benchmarks=1, level=level)
    kept = wilson_interval(agreed, len(before), level)
    drifted = compared.verdict in ("regression", "improvement") or kept.upper < AGREEMENT
    verdict = "drift" if drifted else "no drift"
    return found | {"agreement": agreed / len(before), **_plain(asdict(compared)), "verdict": verdict}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values without numbers that JSON cannot write."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def last_comparable(known: Sequence[Mapping[str, Any]], name: str, benchmark: str, judge: str) -> Mapping[str, Any]:
    """Returns the newest record's part of a benchmark that the same judge judged on the same items; empty if there is
    none."""
    for record in reversed(known):
        part = record["benchmarks"].get(name, {})
        if record["judge"]["digest"] == judge and part.get("digest") == benchmark and part.get("scores"):
            return {**part, "record": record["number"]}
    return {}


def reevaluate(root: Path, settings: ReevaluationSettings, model: Mapping[str, str], *, now: float) -> dict[str, Any]:
    """Re-evaluates one model: decides, evaluates, compares, and appends a record.

    Args:
        model: name, alias, version, digest, result (path) and commit from the registry.
        now: seconds since the epoch.

    Returns:
        the record, or {"reasons": []} when there is nothing to do.

    Raises:
        DataError: neither the tree nor its history has the result that the registry names.
    """
    result = root / model["result"]
    if result.is_dir() and digest(result) == model["digest"]:
        return _reevaluate(root, root, settings, model, now=now)
    with tempfile.TemporaryDirectory() as folder:
        try:
            restore_result(root, model["result"], model["digest"], model.get("commit", ""), Path(folder))
        except DataError as error:
            raise DataError(
                f"is not the result that {model['name']}@{model['alias']} names ({model['digest'][:12]}), and DVC "
                f"cannot restore it ({error})",
                file=str(result),
                remedy="Fetch it: dvc checkout, dvc pull; or promote the present one: rewardsmith promote",
            ) from None
        return _reevaluate(root, Path(folder), settings, model, now=now)


def _reevaluate(
    root: Path, tree: Path, settings: ReevaluationSettings, model: Mapping[str, str], *, now: float
) -> dict[str, Any]:
    """Returns the record of a model whose result, tokenizer, template and SFT model are in another tree.

    That tree is laid out like the repository. Settings, judge and benchmarks are the repository's, so that a change of
    them shows.
    """
    from tasks.evaluating.policies import Evaluator
    from tasks.running.loading import load_encoder, load_judge, load_policy, load_world

    result, who = tree / model["result"], f"{model['name']}@{model['alias']}"
    inputs = inputs_of(result)
    data, page = root / inputs["data"], Address(inputs["evaluation"]).under(root)
    for path in (data / "data.json", page.file):
        if not path.exists():
            raise DataError(
                f"is an input of {who}'s evaluation and is missing", file=str(path),
                remedy="Make it (rewardsmith run), or fetch it (dvc checkout, dvc pull); or promote a model of the "
                "data sets that are here",
            )  # fmt: skip
    spec = typed(EvaluationConfig, read_settings(page), str(inputs["evaluation"]))
    if spec.judge is None:
        raise RecipeError(f"{inputs['evaluation']} names no judge, so there is nothing to re-evaluate")
    world = load_world(data)
    asked = {name: value for name, value in spec.judge.items() if name != "cache_path"}
    uncached: Any = load_judge(asked, world)
    cached = {"cache_path": str(root / CACHE)} if asked["kind"] == "endpoint" else {}
    judge: Any = load_judge(asked | cached, world)
    prompts = digest(Path(str(templates.__file__)))
    identity = request_digest({"spec": dict(spec.judge), "name": uncached.name, "templates": prompts})
    folder = records_folder(root, model["name"], model["alias"])
    folder.mkdir(parents=True, exist_ok=True)
    known, wanted = records(folder), benchmark_digests(data, settings.benchmarks, spec)
    last = known[-1] if known else None
    why = reasons(
        last, model=model["digest"], benchmarks=wanted, judge=identity, now=now, drift_days=settings.drift_days
    )
    if not why:
        return {"reasons": []}
    encoder = load_encoder(tree / inputs["data"], result / "model")
    evaluator = Evaluator(data, encoder, spec, None, world)
    record: dict[str, Any] = {
        "number": last["number"] + 1 if last is not None else 1,
        "time": now,
        "reasons": why,
        **{key: model[key] for key in ("name", "alias", "version", "digest", "result")},
        "judge": {"digest": identity, "name": uncached.name},
        "canary": _judged_canary(evaluator, uncached, canary(folder, tree / inputs["sft"], settings.canary), [
            each["canary"] for each in known if each["judge"]["digest"] == identity
        ], settings.level),
        "benchmarks": {},
        "changes": {},
        "lost": {},
    }  # fmt: skip
    if why == [DRIFT_CHECK] and last is not None:
        record["benchmarks"] = last["benchmarks"]
    else:
        policy = load_policy(result / "model", encoder)
        for name, mark in wanted.items():
            # a cache has the replies that could not be parsed, too
            asking = uncached if last and last["benchmarks"].get(name, {}).get("scores") == {} else judge
            generations = evaluator.generate_dialogue(policy, name)
            judgements, _ = evaluator.judge_dialogue(asking, {name: generations})
            found, items = scores(judgements), len({row["id"] for row in judgements})
            record["benchmarks"][name] = {
                "digest": mark,
                "mean": mean(found.values()) if found else None,
                "items": len(found),
                "unparsable": items - len(found),
                "scores": found,
            }
            if wilson_interval(len(found), items, settings.level).upper < AGREEMENT:
                record["lost"][name] = {"given": len(found), "n": items}
            if before := last_comparable(known, name, mark, identity):
                compared = change(before["scores"], found, benchmarks=len(wanted), level=settings.level)
                record["changes"][name] = {**_plain(asdict(compared)), "since": before["record"]}
    record["alerts"] = alerts(record)
    partial = folder / f".{record['number']}.partial"
    write_json(partial, record)
    partial.rename(folder / f"{record['number']:06d}.json")
    return record


def _judged_canary(
    evaluator: Evaluator, judge: Judge, rows: list[Generation], checks: Sequence[Mapping[str, Any]], level: float
) -> dict[str, Any]:
    """Returns the canary judged now, against the first of some checks that has verdicts on the same comparisons."""
    chosen = request_digest({"canary": rows})
    first = next((one["scores"] for one in checks if one["scores"] and one.get("digest", chosen) == chosen), None)
    judgements, _ = evaluator.judge_dialogue(judge, {"alpaca": rows})
    return {"digest": chosen, **drift(len(rows), scores(judgements), first, level)}


def alerts(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the alerts of a record: regressions of the model and, separately, changes and failures of the judge."""
    found, judge, who = [], f"the judge {record['judge']['name']}", f"{record['name']}@{record['alias']}"
    drifted, values = record["canary"]["verdict"] == "drift", record["canary"]
    if drifted:
        text = f"{judge} judges the same texts differently now: "
        text += f"mean {values['difference']:+.3f}, " if values["difference"] is not None else ""
        text += f"agreement {values['agreement']:.0%}"
        text += f", {values['unparsable']} verdicts cannot be parsed" if values["unparsable"] else ""
        found.append({"kind": "judge drift", "text": text})
    for name, values in record["lost"].items():
        text = f"{judge} gave verdicts that can be parsed on {values['given']} of {values['n']} items of {name}: "
        found.append({"kind": "judge verdicts", "text": f"{text}a regression of {who} may not show there"})
    for name, values in record["changes"].items():
        if values["verdict"] == "regression":
            interval = f"{values['lower']:+.3f} to {values['upper']:+.3f}, {values['n']} items"
            text = f"{who} lost {-values['difference']:.3f} on {name} ({interval}) since record {values['since']}"
            found.append({"kind": "regression", "text": text + ("; the judge drifted too" if drifted else "")})
    return found


@prints_errors
def main(arguments: list[str] | None = None) -> int:
    """Re-evaluates the model of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.reevaluation.evaluate", description=__doc__.split("\n")[0])
    parser.add_argument("--settings", type=Path, default=Path("params/reevaluation.yaml"))
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: this directory)")
    for name in ("name", "alias", "version", "digest", "result"):
        parser.add_argument(f"--{name}", required=True, help="from the registry")
    parser.add_argument("--out", type=Path, help="also write the record there")
    parser.add_argument("--commit", default="", help="at which the result was made, where the tree has another one")
    options = parser.parse_args(arguments)
    model = {name: getattr(options, name) for name in ("name", "alias", "version", "digest", "result", "commit")}
    who = f"{options.name}@{options.alias}"
    lock = options.root / ".work" / "reevaluations" / f"{who}.lock"
    with only_one(lock, f"another process evaluates {who}", "Wait for it"):
        restore_records(options.root)
        record = reevaluate(options.root, read_reevaluation(options.settings), model, now=time.time())
    if options.out:
        write_json(options.out, record)
    print(json.dumps({key: record[key] for key in ("reasons", "changes", "alerts") if key in record}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
