"""Golden runs: every stage, policy optimiser and supervised recipe once, seeded, in a few seconds each.

Stages are run by their command lines, `tasks.<stage>`; results are laid out as by the graph, so that tables find them.
Their settings are in golden_settings.yaml.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import yaml
from filelock import FileLock

from tasks.graph.dvc_files import STAGES
from tasks.params.yaml_files import yaml_text
from tests.tasks.golden_files import write_files

Values = dict[str, Any]
_CONTENT = yaml.safe_load(Path(__file__).with_name("golden_settings.yaml").read_text(encoding="utf-8"))
#: Parts of settings by name, and every settings file's content; no part is an object of two of them.
SHARED: dict[str, Values] = json.loads(json.dumps(_CONTENT["shared"]))
SETTINGS: dict[str, Values] = json.loads(json.dumps(_CONTENT["entries"]))
#: Choices of a step that no other run makes, each at its cheapest, by the name of their row.
SHAPINGS = ("sigmoid_k2", "sigmoid_k3", "tanh_centered", "sgfc", "centered", "poly", "lsc", "length_penalty")
PLAIN_SHAPINGS = ("sigmoid", "tanh", "ceil", "clip", "meanstd", "short_response")
READS = ("marker", "difference", "attention", "transformer", "least-squares", "read-elsewhere")
MODELS, OPTIMISERS = READS[:4], ("whitening", "no-clip", "penalty", "groups", "responses")

Names = str | tuple[str, ...]
#: Values in place of an argument's: settings, paths or words, or None where the argument is left out.
Given = Mapping[str, Any] | str | Path | tuple[str | Path, ...] | None

#: Stages that compute; the result of `check` is constant.
COMPUTING = tuple(stage for stage in STAGES if stage != "check")
#: Stages whose command line has a seed.
SEEDED = (
    "sft", "samples", "generative_reward_model", "reward_model", "references", "aspect_model", "selection", "pool",
    "policy",
)  # fmt: skip
#: Folder of results, and the scale of the runs.
RESULTS, SCALE = "results", "testbed"


@dataclass(frozen=True)
class GoldenRun:
    """One run of a stage.

    Args:
        stage: module of `tasks`.
        place: where its output goes, below the scale's results.
        settings: entries of SETTINGS by argument.
        reads: runs whose results it reads, by argument.
    """

    stage: str
    place: str
    settings: Mapping[str, Names] = field(default_factory=dict)
    reads: Mapping[str, Names] = field(default_factory=dict)

    @property
    def needs(self) -> list[str]:
        """Names of the runs that it reads; tables read the SFT models, and what is below their paper's folder."""
        if self.stage == "tables":
            below = (f"{self.place.split('/')[0]}/", "shared/sft/", "shared/pool/")
            computed = {name: run for name, run in RUNS.items() if run.stage != "tables"}
            return [name for name, run in computed.items() if run.place.startswith(below)]
        return [name for value in self.reads.values() for name in _several(value)]


def _several(value: Names) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _data(name: str) -> GoldenRun:
    return GoldenRun("prepare", f"shared/data/{name}", {"spec": f"data/{name}"})


def _tokenizer(data: str, settings: str = "tokenizer") -> GoldenRun:
    return GoldenRun("tokenizer", f"shared/tokenizer/{data}", {"spec": settings}, {"data": data})


def _sft(name: str, spec: str, evaluation: str, data: str) -> GoldenRun:
    reads = {"data": data, "tokenizer": f"{data}-tokenizer"}
    return GoldenRun("sft", f"shared/sft/{name}/0", {"spec": spec, "evaluation": evaluation}, reads)


def _model(
    name: str, *, data: str = "dialogue", sft: str = "sft", settings: str | None = None, **reads: Names
) -> GoldenRun:
    files = {"spec": settings or f"reward_model/{name}", "scale": "training"}
    return GoldenRun("reward_model", f"segment/reward_model/{name}/0", files, {"data": data, "sft": sft, **reads})


def _fit(model: str, *, data: str = "dialogue", sft: str = "sft", **reads: Names) -> GoldenRun:
    reads = {"data": data, "sft": sft, "reward_model": f"model-{model}", **reads}
    return GoldenRun("normaliser", f"segment/normaliser/{model}/0", {"scale": "normaliser"}, reads)


def _references(model: str) -> GoldenRun:
    reads = {"data": "dialogue", "sft": "sft", "reward_model": f"model-{model}"}
    return GoldenRun("references", f"segment/references/{model}/0", {"scale": "references"}, reads)


def _policy(place: str, row: str, scale: str, models: Names = (), **reads: Names) -> GoldenRun:
    """A policy on dialogue unless `reads` names other data."""
    files = {"row": f"row/{row}", "scale": f"policy/{scale}", "evaluation": "evaluation"}
    given: dict[str, Names] = {"data": "dialogue", "sft": "sft"}
    if models:
        names = _several(models)
        given |= {"reward_model": tuple(f"model-{n}" for n in names), "normaliser": tuple(f"fit-{n}" for n in names)}
    return GoldenRun("policy", f"{place}/policy/{row}/0", files, given | reads)


def _on_questions(row: str, scale: str, models: Names = (), **reads: Names) -> GoldenRun:
    """A policy on mathematics, which has no dialogue to judge."""
    above: dict[str, Names] = {"data": "mathematics", "sft": "reasoner", "samples": "samples", "teacher": "teacher"}
    made = _policy("rlmec", row, scale, models, **{**above, **reads})
    return replace(made, settings={**made.settings, "evaluation": "question_evaluation"})


def _alarm(row: str, kind: str = "qa") -> GoldenRun:
    """A policy that pays aspects."""
    own = {"qa": ("longform", "long"), "mt": ("translation", "encoder-decoder")}[kind]
    reads: dict[str, Names] = {"data": own[0], "sft": own[1], "selection": f"selection-{kind}"}
    reads |= {"holistic": f"model-holistic-{kind}"} | ({"aspect_model": ASPECT_RUNS} if kind == "qa" else {})
    made = _policy("alarm", row, "alarm", f"holistic-{kind}", **reads)
    return replace(made, settings={**made.settings, "evaluation": "long_evaluation"})


def _selection(kind: str, aspects: tuple[str, ...], data: str, sft: str, **reads: Names) -> GoldenRun:
    files: dict[str, Names] = {"spec": f"selection/{kind}", "scale": "selection_scale"}
    files["aspect"] = tuple(f"aspects/{name}" for name in aspects)
    above = {"data": data, "sft": sft, "reward_model": f"model-holistic-{kind}", **reads}
    return GoldenRun("selection", f"alarm/selection/{kind}/0", files, above)


def _choice(row: str, scale: str, model: str, **reads: Names) -> GoldenRun:
    """A policy that shows one choice, with a short evaluation."""
    made = _policy("choices", row, scale, model, **reads)
    return replace(made, settings={**made.settings, "evaluation": "short_evaluation"})


ENTROPIES = {"entropies": "entropies"}
SENTENCES = {"sentences": "segmenter"}
ASPECTS = ("factuality", "relevance", "completeness")
ASPECT_RUNS = tuple(f"aspect-{name}" for name in ASPECTS)
PAPERS = ("segment", "sentence", "alarm", "rlmec", "par")

#: Every golden run by its name, each after those that it reads.
RUNS: dict[str, GoldenRun] = {
    **{name: _data(name) for name in ("dialogue", "mathematics", "questions", "longform", "translation", "flattery")},
    "dialogue-tokenizer": _tokenizer("dialogue"),
    "mathematics-tokenizer": _tokenizer("mathematics", "question_tokenizer"),
    "longform-tokenizer": _tokenizer("longform"),
    "translation-tokenizer": _tokenizer("translation"),
    "segmenter": GoldenRun("segmenter", "shared/segmenter/sat-1l", {"spec": "segmenter"}, {"data": "dialogue"}),
    "sft": _sft("phi3-mini", "backbone", "evaluation", "dialogue"),
    "reasoner": _sft("rlmec-math", "reasoner", "question_evaluation", "mathematics"),
    "long": _sft("alarm-qa", "backbone", "long_evaluation", "longform"),
    "encoder-decoder": _sft("alarm-mt", "encoder_decoder", "long_evaluation", "translation"),
    "entropies": GoldenRun(
        "entropies", "shared/entropies/phi3-mini/0", {"spec": "entropies"}, {"data": "dialogue", "sft": "sft"}
    ),
    "model-segment": _model("segment", **ENTROPIES),
    "model-bandit": _model("bandit"),
    "model-token": _model("token"),
    "model-reg": _model("reg", data="flattery"),
    "model-odin": _model("odin"),
    "model-sentence": _model("sentence", **SENTENCES),
    "model-warm-1": _model("warm-1"),
    "model-warm-2": _model("warm-2"),
    "model-warm": _model("warm", reward_model=("model-warm-1", "model-warm-2")),
    "model-holistic-qa": _model("holistic-qa", data="longform", sft="long", settings="reward_model/bandit"),
    "model-holistic-mt": _model(
        "holistic-mt", data="translation", sft="encoder-decoder", settings="reward_model/bandit"
    ),
    "fit-segment": _fit("segment", **ENTROPIES),
    "fit-bandit": _fit("bandit"),
    "fit-token": _fit("token"),
    "fit-odin": _fit("odin"),
    "fit-warm": _fit("warm"),
    "fit-sentence": _fit("sentence", **SENTENCES),
    "fit-holistic-qa": _fit("holistic-qa", data="longform", sft="long"),
    "fit-holistic-mt": _fit("holistic-mt", data="translation", sft="encoder-decoder"),
    "references-segment": _references("segment"),
    "references-bandit": _references("bandit"),
    "references-odin": _references("odin"),
    "references-warm": _references("warm"),
    "segment": _policy("segment", "segment", "ppo", "segment", **ENTROPIES),
    "bandit": _policy("segment", "bandit", "ppo", "bandit"),
    "token": _policy("segment", "token", "ppo", "token"),
    "dpo": _policy("segment", "dpo", "dpo"),
    "segment-par": _policy("mixed", "segment-par", "ppo", "segment", **ENTROPIES, references="references-segment"),
    "two": _policy("mixed", "two", "ppo", ("segment", "bandit"), **ENTROPIES, references="references-bandit"),
    "lora": _policy("mixed", "lora", "ppo", "bandit"),
    "function": _policy("mixed", "function", "reinforce_plus_plus"),
    "rloo": _policy("mixed", "rloo", "rloo", "segment", **ENTROPIES),
    "sentence": _policy("sentence", "sentence", "reinforce_plus_plus", "sentence", **SENTENCES),
    "par": _policy("par", "par", "par_ppo", "bandit", references="references-bandit"),
    "minmax": _policy("par", "minmax", "par_ppo", "bandit", references="references-bandit"),
    "odin": _policy("par", "odin", "par_ppo", "odin", references="references-odin"),
    "warm": _policy("par", "warm", "par_ppo", "warm", references="references-warm"),
    "grpo-par": _policy("par", "grpo-par", "grpo", "bandit", references="references-bandit"),
    "online-dpo-par": _policy("par", "online-dpo-par", "online_dpo", "bandit", references="references-bandit"),
    "reward_bench": GoldenRun(
        "reward_bench", "sentence/reward_bench/bench-sentence/0", {"scale": "reward_bench"},
        {"data": "dialogue", "sft": "sft", **SENTENCES, "reward_model": "model-sentence"},
    ),
    "pool": GoldenRun("pool", "shared/pool/phi3-mini/0", {"scale": "pool"}, {"data": "dialogue", "sft": "sft"}),
    "best_of_n": GoldenRun(
        "best_of_n", "sentence/best_of_n/best-of-n-sentence/0", {"scale": "best_of_n"},
        {"data": "dialogue", "sft": "sft", **SENTENCES, "reward_model": "model-sentence", "pool": "pool"},
    ),
    "second_judge": GoldenRun(
        "second_judge", "sentence/second_judge/second-judge/0",
        {"row": "row/second-judge", "scale": "second_judge_scale"},
        {"data": "dialogue", "policies": ("sentence", "bandit", "dpo")},
    ),
    **{
        f"aspect-{name}": GoldenRun(
            "aspect_model", f"alarm/aspect_model/{name}/0", {"spec": f"aspect_model/{name}", "scale": "training"},
            {"data": "longform", "sft": "long"},
        )
        for name in ASPECTS
    },
    "selection-qa": _selection("qa", (*ASPECTS, "length"), "longform", "long", aspect_model=ASPECT_RUNS),
    "selection-mt": _selection("mt", ("grammar", "length"), "translation", "encoder-decoder"),
    "qa-alarm": _alarm("qa-alarm"),
    "qa-alarm-selected": _alarm("qa-alarm-selected"),
    "qa-weighted-sum": _alarm("qa-weighted-sum"),
    "mt-alarm": _alarm("mt-alarm", "mt"),
    "samples": GoldenRun(
        "samples", "shared/samples/rlmec-math/0", {"spec": "samples"}, {"data": "mathematics", "sft": "reasoner"}
    ),
    "teacher": GoldenRun(
        "teacher", "shared/teacher/rlmec-math/0", {"spec": "teacher"},
        {"data": "mathematics", "sft": "reasoner", "samples": "samples"},
    ),
    "generative": GoldenRun(
        "generative_reward_model", "rlmec/generative_reward_model/math/0",
        {"spec": "generative", "scale": "generative_scale"},
        {"data": "mathematics", "sft": "reasoner", "samples": "samples", "teacher": "teacher"},
    ),
    "solution_pairs": GoldenRun(
        "solution_pairs", "shared/solution_pairs/rlmec-math/0", {}, {"data": "mathematics", "samples": "samples"}
    ),
    "model-solutions": _model("solutions", data="solution_pairs", sft="reasoner"),
    "fit-solutions": _fit("solutions", data="solution_pairs", sft="reasoner"),
    "ppo-a2c": _on_questions("ppo-a2c", "ppo_a2c", "solutions"),
    "vanilla-ppo": _on_questions("vanilla-ppo", "vanilla_ppo", "solutions"),
    "math-rlmec": _on_questions("math-rlmec", "rlmec", token_rewards="generative"),
    "math-without-tls": _on_questions("math-without-tls", "rlmec", "solutions", token_rewards="generative"),
    **{f"math-{name}": _on_questions(f"math-{name}", "solutions") for name in ("sft", "rft", "rft-td", "coh", "figa")},
    "math-dpo": _on_questions("math-dpo", "solutions_dpo"),
    "math-imitation": _on_questions("math-imitation", "solutions", token_rewards="generative"),
    **{f"tables-{paper}": GoldenRun("tables", f"{paper}/tables") for paper in PAPERS},
    **{f"model-{name}": _model(name) for name in MODELS},
    **{f"fit-{name}": _fit(name) for name in MODELS},
    **{name: _choice(name, "choice", "bandit", references="references-bandit") for name in SHAPINGS},
    **{name: _choice(name, "choice", "bandit") for name in PLAIN_SHAPINGS},
    **{
        name: _choice(name, "choice", model, **(ENTROPIES if model == "segment" else {}))
        for name, model in ((name, SETTINGS[f"row/{name}"]["reward_model"]) for name in READS)
    },
    **{name: _choice(name, name, "bandit") for name in OPTIMISERS},
    "alarmed": _choice("alarmed", "alarmed", "bandit"),
    "fit-floored": replace(
        _fit("segment", **ENTROPIES),
        place="choices/normaliser/segment/0",
        settings={"scale": "normaliser_floored"},
    ),
    "floored": _choice("floored", "choice", "segment", **ENTROPIES, normaliser="fit-floored"),
    "rft-truths": _on_questions("rft-truths", "solutions"),
    "figa-weights": _on_questions("figa-weights", "solutions"),
    "imitation-weights": _on_questions("imitation-weights", "solutions", token_rewards="generative"),
    **{name: _data(name) for name in ("own-pairs", "own-sums")},
    "generative-stopped": GoldenRun(
        "generative_reward_model", "choices/generative_reward_model/strict/0",
        {"spec": "generative", "scale": "generative_strict"},
        {"data": "mathematics", "sft": "reasoner", "samples": "samples", "teacher": "teacher"},
    ),
    # Its tokenizer is the dialogue's, so the policy's tokens are made of others.
    "generative-other-tokens": GoldenRun(
        "generative_reward_model", "choices/generative_reward_model/other-tokens/0",
        {"spec": "generative", "scale": "generative_scale"},
        {"data": "mathematics", "sft": "sft", "samples": "samples", "teacher": "teacher"},
    ),
    "generative-longer": GoldenRun(
        "generative_reward_model", "choices/generative_reward_model/longer/0",
        {"spec": "generative", "scale": "generative_longer"},
        {"data": "mathematics", "sft": "reasoner", "samples": "samples", "teacher": "teacher"},
    ),
    "imitation-stopped": replace(
        _on_questions("math-imitation", "solutions", token_rewards="generative-stopped"),
        place="choices/policy/imitation-stopped/0",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class GoldenRuns:
    """A directory with the settings and the outputs of golden runs; stages run with it as the working directory."""

    root: Path

    def write(self, changed: Mapping[str, Values] | None = None) -> Self:
        """Writes the settings files, with some of their entries changed or new, and the files of real data; returns
        itself."""
        for name, values in {**SETTINGS, **(changed or {})}.items():
            _write(self.settings(name), yaml_text(values))
        write_files(self.root)
        return self

    def settings(self, name: str) -> Path:
        """Returns the file of an entry of SETTINGS."""
        return self.root / "params" / f"{name}.yaml"

    def place(self, name: str) -> Path:
        """Returns the folder into which a run writes."""
        return self.root / RESULTS / SCALE / RUNS[name].place

    def out(self, name: str) -> Path:
        """Returns the output of a run."""
        return self.place(name)

    def result(self, name: str) -> Path:
        return self.out(name) / "result"

    def read(self, name: str, file: str = "metrics.json") -> Any:
        """Returns the parsed content of a JSON or JSON Lines file of a result."""
        return parsed(self.result(name) / file)

    def record(self, name: str) -> Any:
        return parsed(self.out(name) / "record" / "record.json")

    def copy(self, other: GoldenRuns, *names: str) -> Self:
        """Copies the outputs of some runs from another directory; returns itself."""
        for name in names:
            shutil.copytree(other.out(name), self.place(name))
        return self

    def command_line(self, name: str, **changed: Given) -> list[str]:
        """Returns the arguments of a run's stage; `changed` replaces values by argument, None leaves one out.

        A mapping is written as a settings file.
        """
        run, written = RUNS[name], {"out": self.place(name), **changed}
        for key, given in written.items():
            if isinstance(given, Mapping):
                written[key] = file = self.settings(f"changed/{name}/{key}-{_digest(given)}")
                _write(file, yaml_text(given))
        if run.stage in SEEDED:
            written = {"seed": "0", **written}
        if run.stage == "tables":
            paper = run.place.split("/")[0]
            written = {"results": f"{RESULTS}/{SCALE}", "paper": paper, "seeds": "0", **written}
        values = dict(self._inputs(run, changed)) | {
            key: [str(each) for each in (given if isinstance(given, tuple) else (given,))]
            for key, given in written.items()
            if given is not None
        }
        return [word for key, value in values.items() for word in (f"--{key.replace('_', '-')}", *value)]

    def _inputs(self, run: GoldenRun, changed: Mapping[str, Given]) -> Iterator[tuple[str, list[str]]]:
        for names, place in ((run.settings, self.settings), (run.reads, self.result)):
            for key, value in names.items():
                if key not in changed:
                    yield key, [str(place(name)) for name in _several(value)]

    def inputs(self, name: str) -> list[Path]:
        """Returns the settings files and results that a run reads."""
        return [Path(path) for _, paths in self._inputs(RUNS[name], {}) for path in paths]

    def run(self, name: str, **changed: Given) -> Path:
        """Runs a stage's entry point in this process, with changed arguments as of `command_line`; returns its
        result."""
        out = Path(str(changed.get("out", self.place(name)))).absolute()
        with chdir(self.root):
            import_module(module(name)).main(self.command_line(name, **{**changed, "out": out}))
        return out / "result"


def parsed(file: Path) -> Any:
    """Returns the content of a JSON or JSON Lines file."""
    text = file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)


def module(name: str) -> str:
    """Returns the module of a run's stage."""
    return f"tasks.{RUNS[name].stage}"


def changed(name: str, path: str, value: Any) -> Values:
    """Returns golden settings with the value at a dotted path replaced; None removes it."""
    result = copy.deepcopy(SETTINGS[name])
    *parents, last = path.split(".")
    inner = reduce(lambda values, parent: values[parent], parents, result)
    inner[last] = value
    if value is None:
        del inner[last]
    return result


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class SharedRuns(GoldenRuns):
    """Golden runs in a folder that several test processes share: each is run by the first that asks for its output."""

    def __post_init__(self) -> None:
        with FileLock(self.root / "settings.lock"):
            if not (self.root / RESULTS).exists():
                self.write()

    def made(self, *names: str) -> Self:
        """Runs the named ones and what they read where that is still to do; returns itself."""
        for each in with_upstream(list(names)):
            with FileLock(self.root / f"{each}.lock"):
                if not (self.place(each) / "result").exists():
                    GoldenRuns(self.root).run(each)
        return self

    def out(self, name: str) -> Path:
        self.made(name)
        return self.place(name)


def with_upstream(names: list[str]) -> list[str]:
    """Returns some runs and all that they read, in order."""
    wanted = set(names)
    for name in reversed(RUNS):
        if name in wanted:
            wanted |= set(RUNS[name].needs)
    return [name for name in RUNS if name in wanted]
