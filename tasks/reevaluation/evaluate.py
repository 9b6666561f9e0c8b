"""Evaluates a model again where something changed, and compares it with the last time.

    python -m tasks.reevaluation.evaluate --settings params/reevaluation.yaml --name segment-policy-segment \
        --alias champion --version 3 --digest <sha256> --result results/testbed/segment/policy/segment/0/result

0. Records that DVC has and the tree lacks are restored first. A result that the tree no longer holds is restored
   from the commit that it was made at, or a later one; benchmarks and judge are the tree's present ones.
1. It runs when the model, a benchmark (its items, or how they are answered) or the judge changed since the last
   record, or a drift check is due.
2. Answers are generated with the evaluation's seed and judged through a cache of verdicts, so that no text is judged
   twice. The canary, a fixed set of comparisons, is judged past every cache: what changes there is the judge.
3. Each benchmark is compared with the last record of the same benchmark and judge, over the same items, with an
   interval corrected for the number of benchmarks. A regression is an interval below 0. Verdicts that cannot be parsed
   any more say nothing about the model: an alert of their own.
4. A record is appended in reevaluations/<name>@<alias>/; records are never changed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, cast

from rlhf_core.errors import DataError, RecipeError, prints_errors
from rlhf_core.evaluation.judges.cache import AnswerCache
from rlhf_core.evaluation.judges.cache import digest as request_digest
from rlhf_core.evaluation.judges.games import Game, JudgedPair, grade_answers, play_games
from rlhf_core.evaluation.judges.templates import get_template
from rlhf_core.evaluation.statistics import change, wilson_interval
from tasks.params.evaluation import EvaluationConfig, ReevaluationSettings
from tasks.params.pages import Address, read_settings
from tasks.params.settings import typed
from tasks.params.yaml_files import write_whole
from tasks.reevaluation.history import records, records_folder, restore_records
from tasks.reevaluation.past_results import restore_result
from tasks.running.artifacts import digest, read_json, read_jsonl, write_json
from tasks.running.exclusive import only_one
from tasks.running.result_rows import Generation

if TYPE_CHECKING:
    from rlhf_core.evaluation.judges.protocol import Judge, JudgeRequest

CACHE = Path(".judge-cache") / "reevaluation.jsonl"
#: A judge drifted, too, when fewer of its verdicts than this are as at first (by the interval's upper end); and a
#: benchmark lost its verdicts when fewer than this can be parsed of those that could be.
AGREEMENT = 0.8
NO_VERDICTS = "has no verdicts"
#: The reason for judging the canary alone: the record has the benchmarks of the record before it.
DRIFT_CHECK = "a drift check is due"
TEMPLATES = {"alpaca": "alpaca_eval", "ood": "alpaca_eval", "arena": "arena_hard"}


def load_settings(path: Path) -> ReevaluationSettings:
    """Returns the settings of a file.

    Raises:
        RecipeError: an unknown or wrong setting.
    """
    return typed(ReevaluationSettings, read_settings(path), str(path))


@dataclass(frozen=True)
class Subject:
    """Inputs for the evaluation of a model: paths from its record."""

    result: Path
    data: Path
    sft: Path
    evaluation: Path

    @classmethod
    def of(cls, result: Path) -> Subject:
        """Returns what the record of a policy's result names.

        Raises:
            DataError: a result without the record of a policy.
        """
        record = read_json(result.parent / "record" / "record.json")
        found: dict[str, Path] = {}
        for path in map(Path, record.get("inputs", {})):
            # results/<scale>/shared/data/<name>/result, params/scales/<scale>/evaluation.yaml:<name>
            file = Address(path).file
            names = {*path.parts[-4:-1], *([file.stem.split("_")[0]] if file.suffix == ".yaml" else [])}
            found |= {part: path for part in ("data", "sft", "evaluation") if part in names}
        missing = {"data", "sft", "evaluation"} - set(found)
        if missing:
            raise DataError(
                f"names no {', '.join(sorted(missing))} among its inputs",
                file=str(result.parent / "record" / "record.json"),
                remedy="Only policies are evaluated again",
            )
        return cls(result, **found)


class CachedJudge:
    """A judge that is not asked twice about the same text.

    Args:
        again: ask again where the verdict in the cache cannot be parsed.

    Attributes:
        asked, cached: requests that went to the judge, and that the cache answered.
    """

    def __init__(self, judge: Judge, cache: AnswerCache, identity: str, *, again: bool = False) -> None:
        self.judge, self.cache, self.identity, self.name = judge, cache, identity, judge.name
        self.again = again
        self.asked = self.cached = 0

    def key(self, request: JudgeRequest) -> str:
        parts = {"judge": self.identity, "prompt": request.prompt, "answers": list(request.answers)}
        return request_digest(parts | {"template": request.template, "meta": request.meta})

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        keys = [self.key(request) for request in requests]
        asked = dict(zip(keys, requests, strict=True))
        known = {key: row["text"] for key in keys if (row := self.cache.get(key)) is not None}
        if self.again:
            known = {key: text for key, text in known.items() if _parsable(asked[key], text)}
        missing = {key: request for key, request in asked.items() if key not in known}
        texts = self.judge.answer(list(missing.values())) if missing else []
        for key, text in zip(missing, texts, strict=True):
            known[key] = text
            if text:  # an empty answer is one that did not come
                self.cache.put(key, text, judge=self.name)
        self.asked += len(missing)
        self.cached += len(requests) - len(missing)
        return [known[key] for key in keys]


def _parsable(request: JudgeRequest, text: str) -> bool:
    return get_template(request.template).parse(text).valid


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


def judge_digest(spec: Mapping[str, Any], name: str) -> str:
    """Returns the identity of a judge: its settings, the name of the served model, and its prompts."""
    import rlhf_core.evaluation.judges.templates as templates

    return request_digest({"spec": dict(spec), "name": name, "templates": digest(Path(str(templates.__file__)))})


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
    known = {name: values["digest"] for name, values in last["benchmarks"].items()}
    found += [f"benchmark {name} changed" for name, value in benchmarks.items() if known.get(name) != value]
    mute = {name for name, values in last["benchmarks"].items() if values.get("unparsable") and not values["scores"]}
    found += [f"benchmark {name} {NO_VERDICTS}" for name, value in benchmarks.items() if name in mute]
    found += ["the judge changed"] if last["judge"]["digest"] != judge else []
    if not found and now - last["time"] >= drift_days * 86400:
        found.append(DRIFT_CHECK)
    return found


def scores(name: str, games: Sequence[Game]) -> dict[str, float]:
    """Returns the score of each item, higher is better: preference 0 to 1, share of points 0 to 1, or rating 1 to
    10."""
    found: dict[str, list[float]] = {}
    for game in games:
        if name == "mtbench":
            value = game.verdict.value if game.verdict.valid and game.verdict.value is not None else math.nan
        elif TEMPLATES[name] == "alpaca_eval":
            value = game.preference_for_model - 1
        else:
            value = game.score_for_model
        if math.isfinite(value):
            found.setdefault(game.id, []).append(value)
    return {item: mean(values) for item, values in found.items()}


def item_of(name: str, row: Mapping[str, Any]) -> str:
    """Returns the item of a generation as `scores` names it: in MT-Bench each turn is one."""
    return f"{row['id']}/{row['turn']}" if name == "mtbench" else str(row["id"])


def judged(judge: Judge, name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Scores of one benchmark's generations."""
    if name == "mtbench":
        from tasks.evaluating.benchmarks import graded_answers

        return scores(name, grade_answers(judge, graded_answers(cast(Sequence[Generation], rows))))
    pairs = [
        JudgedPair(row["id"], row["prompt"], row["response"], row["baseline"], {"prompt": row["meta"]}) for row in rows
    ]
    if TEMPLATES[name] == "alpaca_eval":
        return scores(name, play_games(judge, pairs, "alpaca_eval", orders="drawn"))
    return scores(name, play_games(judge, pairs, "arena_hard"))


def canary(folder: Path, sft: Path, size: int) -> list[dict[str, Any]]:
    """Returns the fixed comparisons, chosen once: the SFT model's answers to the first prompts against the baseline's.

    Raises:
        DataError: records were made with a canary that cannot be read; another one would look like drift.
    """
    path = folder / "canary.json"
    if path.exists():
        try:
            found: list[dict[str, Any]] = read_json(path)
            return found
        except DataError as error:
            if records(folder):
                raise DataError(
                    f"the canary of the records next to it cannot be read ({error.problem})",
                    file=str(path),
                    remedy="Move it away: the next run restores it from DVC, or chooses a new one if DVC has none",
                ) from None
    rows = [
        {key: row[key] for key in ("id", "prompt", "response", "baseline", "meta")}
        for row in read_jsonl(sft / "generations.jsonl")
        if row["benchmark"] == "alpaca" and row["response"] != row.get("baseline")
    ][:size]
    if len(rows) < 2:
        raise DataError("has fewer than two comparisons for the canary", file=str(sft))
    write_whole(path, json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return rows


def check_canary(
    judge: Judge, rows: Sequence[Mapping[str, Any]], before: Mapping[str, float] | None, level: float
) -> dict[str, Any]:
    """Returns the canary judged now, against the first time that this judge judged it. A verdict that cannot be parsed
    any more is one that differs."""
    now = judged(judge, "alpaca", rows)
    found: dict[str, Any] = {"scores": now, "unparsable": len(rows) - len(now)}
    if not before:
        return found | {"verdict": "first"}
    expected = before.keys() & {row["id"] for row in rows}
    agreed = sum(i in now and (before[i] > 0.5) == (now[i] > 0.5) for i in expected)
    compared = change(before, now, benchmarks=1, level=level)
    kept = wilson_interval(agreed, len(expected), level)
    drifted = compared.verdict in ("regression", "improvement") or kept.upper < AGREEMENT
    return found | {
        "agreement": agreed / len(expected) if expected else 0.0,
        **_plain(asdict(compared)),
        "verdict": "drift" if drifted else "no drift",
    }


def lost_verdicts(
    before: Mapping[str, float], asked: Collection[str], now: Mapping[str, float], level: float
) -> dict[str, int] | None:
    """Returns the numbers of verdicts given and expected if too few were given, else None.

    Args:
        before: the last comparable scores; what has none there need have none now. Empty: every item should have one.
        asked: the items.
        now: their scores.
        level: of the interval of the share.
    """
    expected = before.keys() & set(asked) if before else set(asked)
    given = len(expected & now.keys())
    if wilson_interval(given, len(expected), level).upper >= AGREEMENT:
        return None
    return {"given": given, "n": len(expected)}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values without numbers that JSON cannot write."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def last_comparable(known: Sequence[Mapping[str, Any]], name: str, benchmark: str, judge: str) -> Mapping[str, Any]:
    """Returns the newest record's part of a benchmark that the same judge judged on the same items; empty if there is
    none."""
    for record in reversed(known):
        part = record["benchmarks"].get(name, {})
        if record["judge"]["digest"] == judge and part.get("digest") == benchmark and part.get("scores"):
            return {**part, "model": record["digest"], "record": record["number"]}
    return {}


def reevaluate(root: Path, settings: ReevaluationSettings, model: Mapping[str, str], *, now: float) -> dict[str, Any]:
    """Re-evaluates one model: decides, evaluates, compares, and appends a record.

    Args:
        root: the repository.
        settings: of all models.
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
    from tasks.params.evaluation import EvaluationConfig
    from tasks.running.loading import load_encoder, load_judge, load_policy, load_world

    result = tree / model["result"]
    subject = Subject.of(result)
    data, evaluation = root / subject.data, Address(subject.evaluation).under(root)
    for path in (data / "data.json", evaluation.file):
        if not path.exists():
            raise DataError(
                f"is an input of {model['name']}@{model['alias']}'s evaluation and is missing",
                file=str(path),
                remedy="Make it (rewardsmith run), or fetch it (dvc checkout, dvc pull); or promote a model of the "
                "data sets that are here",
            )
    spec = typed(EvaluationConfig, read_settings(evaluation), str(subject.evaluation))
    world = load_world(data)
    judge = load_judge(spec.judge, world)
    uncached = load_judge({k: v for k, v in (spec.judge or {}).items() if k != "cache_path"}, world) if judge else None
    if spec.judge is None or judge is None or uncached is None:
        raise RecipeError(f"{subject.evaluation} names no judge, so there is nothing to re-evaluate")
    identity = judge_digest(spec.judge, judge.name)
    folder = records_folder(root, model["name"], model["alias"])
    folder.mkdir(parents=True, exist_ok=True)
    known = records(folder)
    wanted = benchmark_digests(data, settings.benchmarks, spec)
    last = known[-1] if known else None
    why = reasons(
        last, model=model["digest"], benchmarks=wanted, judge=identity, now=now, drift_days=settings.drift_days
    )
    if not why:
        return {"reasons": []}
    rows = canary(folder, tree / subject.sft, settings.canary)
    chosen = request_digest({"canary": rows})
    checks = (r["canary"] for r in known if r["judge"]["digest"] == identity)
    # one without verdicts, or of other comparisons, is nothing to compare with
    first = next((c["scores"] for c in checks if c["scores"] and c.get("digest", chosen) == chosen), None)
    record: dict[str, Any] = {
        "number": last["number"] + 1 if last is not None else 1,
        "time": now,
        "reasons": why,
        **{key: model[key] for key in ("name", "alias", "version", "digest", "result")},
        "judge": {"digest": identity, "name": judge.name},
        "canary": {"digest": chosen, **check_canary(uncached, rows, first, settings.level)},
        "benchmarks": {},
        "changes": {},
        "lost": {},
    }
    if why == [DRIFT_CHECK] and last is not None:
        record["benchmarks"] = last["benchmarks"]
    else:
        encoder = load_encoder(tree / subject.data, result / "model")
        evaluator = Evaluator(data, encoder, spec, None, world)
        policy = load_policy(result / "model", encoder)
        again = any(reason.endswith(NO_VERDICTS) for reason in why)
        cached = CachedJudge(uncached if again else judge, AnswerCache(root / CACHE), identity, again=again)
        for name, mark in wanted.items():
            before = last_comparable(known, name, mark, identity)
            asked = cached.asked
            generations = evaluator.generate_dialogue(policy, name)
            found, items = judged(cached, name, generations), {item_of(name, row) for row in generations}
            record["benchmarks"][name] = {
                "digest": mark,
                "mean": mean(found.values()) if found else None,
                "items": len(found),
                "unparsable": len(items) - len(found),
                "asked": cached.asked - asked,
                "scores": found,
            }
            lost = lost_verdicts(before.get("scores", {}), items, found, settings.level)
            if lost:
                record["lost"][name] = lost
            if before:
                compared = change(before["scores"], found, benchmarks=len(wanted), level=settings.level)
                record["changes"][name] = {**_plain(asdict(compared)), "since": before["record"]}
    record["alerts"] = alerts(record)
    partial = folder / f".{record['number']}.partial"
    write_json(partial, record)
    partial.rename(folder / f"{record['number']:06d}.json")
    return record


def alerts(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the alerts of a record: regressions of the model and, separately, changes and failures of the judge."""
    found, judge = [], f"the judge {record['judge']['name']}"
    drifted = record["canary"]["verdict"] == "drift"
    if drifted:
        values = record["canary"]
        text = f"{judge} judges the same texts differently now: "
        text += f"mean {values['difference']:+.3f}, " if values["difference"] is not None else ""
        text += f"agreement {values['agreement']:.0%}"
        text += f", {values['unparsable']} verdicts cannot be parsed" if values["unparsable"] else ""
        found.append({"kind": "judge drift", "text": text})
    for name, values in record["lost"].items():
        text = f"{judge} gave verdicts that can be parsed on {values['given']} of {values['n']} items of {name}: "
        text += f"a regression of {record['name']}@{record['alias']} may not show there"
        found.append({"kind": "judge verdicts", "text": text})
    for name, values in record["changes"].items():
        if values["verdict"] == "regression":
            interval = f"{values['lower']:+.3f} to {values['upper']:+.3f}, {values['n']} items"
            text = (
                f"{record['name']}@{record['alias']} lost {-values['difference']:.3f} on {name} ({interval}) "
                f"since record {values['since']}"
            )
            found.append({"kind": "regression", "text": text + ("; the judge drifted too" if drifted else "")})
    return found


@prints_errors
def main(arguments: list[str] | None = None) -> int:
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
        record = reevaluate(options.root, load_settings(options.settings), model, now=time.time())
    if options.out:
        write_json(options.out, record)
    print(json.dumps({key: record[key] for key in ("reasons", "changes", "alerts") if key in record}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
