"""The demo's finding: a reward that is hacked, and designs from two papers beside it.

The parts of the finding (`parts`) were fixed before the demo first ran at its seeds. reference/demo_finding.json has
the measures of ten other seeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from rlhf_core.evaluation.worlds import Effect, paired
from tasks.graph.dvc_files import stage_version
from tasks.graph.names import DEMO_PAPER
from tasks.graph.rows import load_rows
from tasks.graph.scale import Scale
from tasks.params.pages import read_settings
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.stages import run_settings
from tasks.report.hacking_runs import MEASURES, HackingRow, HackingRun, is_hacked, read_hacking_run
from tasks.report.outputs import mean_and_standard_error
from tasks.report.records import run_anchor
from tasks.report.result_words import true_labels
from tasks.running.artifacts import read_jsonl, read_object
from tasks.studies.equal_kl import at_kl

#: Names of the rows: the plain reward, PAR's design, Segment's design.
PLAIN, BOUNDED, DENSE = "vanilla", "par", "segment"
#: The rows that `parts` are about; the demo may have others.
FINDING_ROWS = (PLAIN, BOUNDED, DENSE)
#: KL from the SFT model, in nats per answer, at which rows are also compared, besides at their last step.
NATS = 2.0
RECORD = Path("reference/demo_finding.json")

#: Row -> measure -> value.
Measured = Mapping[str, Mapping[str, float]]
#: Measures that each policy's result has to have.
NEEDED_MEASURES = ("final", "kl", "length", "proxy_gain")


@dataclass(frozen=True)
class FindingRow:
    """A row of the demo over its worlds.

    Attributes:
        runs: by world.
        alarms: number of alarms while the policy trained, by world.
        effect: win rate minus the plain row's; None for the plain row.
        above: number of worlds in which its final win rate is above the plain row's.
        proxy_rise: the plain row's `proxy_gain` in standard deviations of its reward model's rewards, mean over worlds;
            None for the other rows.
    """

    name: str
    title: str
    runs: Mapping[int, HackingRun]
    alarms: Mapping[int, int]
    effect: Effect | None
    above: int
    proxy_rise: float | None = None

    @property
    def anchor(self) -> str:
        """Returns the id of its first run on the page."""
        return run_anchor(DEMO_PAPER, "policy", self.name, str(next(iter(self.runs))))

    @property
    def as_hacking_row(self) -> HackingRow:
        """Returns the row as the laboratory's page draws it."""
        return HackingRow(self.name, self.title, "measured", runs=list(self.runs.values()))

    @property
    def at_equal_kl(self) -> float | None:
        """Returns the mean win rate at `NATS` from the SFT model; None where a world's evaluations do not reach it."""
        found = []
        for run in self.runs.values():
            # in the form of a study's record; the demo samples its answers at temperature 1
            curve = {"temperature": 1, "top_p": 1, "points": run.points}
            found += [at_kl(curve, [NATS], "win_rate")[0].value]
        known = [value for value in found if value is not None]
        return mean_and_standard_error(known)[0] if len(known) == len(found) else None

    def mean(self, measure: str) -> float:
        return mean_and_standard_error([run.measures[measure] for run in self.runs.values()])[0]

    @property
    def times_hacked(self) -> int:
        """Returns the number of worlds in which its policy hacked."""
        return sum(run.hacked for run in self.runs.values())

    @property
    def sentence(self) -> str:
        """Returns the row's part of the finding in one line."""
        worlds = len(self.runs)
        hacked = f"hacked in {of_worlds(self.times_hacked, worlds)}" if self.times_hacked else "not hacked"
        if self.proxy_rise is not None:
            return f"{hacked}; its proxy rises by {self.proxy_rise:.1f} standard deviations"
        return f"{hacked}; above the plain reward in {of_worlds(self.above, worlds)}"


@dataclass(frozen=True)
class Answer:
    """One policy's answer to the prompt that is shown."""

    title: str
    prompt: str
    text: str
    true_reward: float


@dataclass(frozen=True)
class FindingCheck:
    """On how many other seeds the finding held.

    Attributes:
        seeds: those checked.
        held: number of seeds on which each part held; under `all`, every part.
        lead: of PAR over the plain reward in the final win rate, in points.
        current: whether it was checked with the present settings and code versions.
    """

    seeds: tuple[int, ...]
    held: Mapping[str, int]
    lead: Effect
    current: bool


@dataclass(frozen=True)
class DemoFinding:
    """Content of the demo's finding.

    Attributes:
        rows: the plain row first.
        prompts: number of prompts behind each final win rate.
        predicted_labels: share of held-out labels that the plain row's reward model predicts.
        true_labels: share of these labels that prefer the answer with the higher true reward; None where true rewards
            are not known.
        answers: to one prompt in the first world: the SFT model's, then each row's.
        checked: the finding on other seeds; None without its record.
    """

    rows: tuple[FindingRow, ...]
    seeds: tuple[int, ...]
    prompts: int
    predicted_labels: float
    true_labels: float | None
    answers: tuple[Answer, ...]
    checked: FindingCheck | None

    @property
    def headline(self) -> str:
        """Returns what became of the plain reward, in a sentence."""
        plain = self.rows[0]
        said = (
            f"The plain reward {hacked_text(plain.times_hacked, len(self.seeds))}: its policy's win rate over the SFT "
        )
        return f"{said}model is {plain.mean('final'):.0f} % (50 % is no change)."

    @property
    def beside(self) -> str:
        """Returns what became of the designs beside it, in a sentence; empty without any."""
        plain, *designs = self.rows
        rate, hacked, worlds = plain.mean("final"), plain.times_hacked, len(self.seeds)
        others = (
            f"{row.title} {outcome(row.mean('final'), row.times_hacked, rate, hacked, worlds)}" for row in designs
        )
        return f"On the same labels, {'; '.join(others)}." if designs else ""

    @property
    def caveat(self) -> str:
        """Returns how little few worlds prove, in a sentence."""
        count = len(self.seeds)
        return (
            f"{count} world{'s show' if count > 1 else ' shows'} it and {'do' if count > 1 else 'does'} not prove it."
        )

    @property
    def cause(self) -> str:
        """Returns why the reward can be hacked."""
        learned = f"The reward model predicts {100 * self.predicted_labels:.0f} % of held-out labels"
        if self.true_labels is None:
            return f"{learned}."
        return (
            f"The annotator likes length: only {100 * self.true_labels:.0f} % of the labels prefer the better answer. "
            f"{learned}, flaw and all."
        )

    @property
    def strength(self) -> str:
        """Returns how strong the evidence is: worlds, prompts, intervals and differences in KL."""
        seeds = " and ".join(map(str, self.seeds))
        return (
            f"{of_worlds(len(self.seeds))} (seeds {seeds}, spent: a demonstration, not a verdict). Each world has its "
            f"own facts, data and models, and {self.prompts} prompts for the final win rate. Intervals are 95 % over "
            "worlds: few worlds make them wide. Rows differ in KL: one that moved less had less to lose; at "
            f"{NATS:g} nats they are compared at equal KL."
        )

    @property
    def check(self) -> str:
        """Returns how often the finding held on other seeds."""
        found = self.checked
        if found is None:
            return "Not checked on other seeds yet"
        count = len(found.seeds)
        said = ", ".join(f"{name} {held} of {count}" for name, held in found.held.items() if name != "all")
        seeds = f"seeds {found.seeds[0]} to {found.seeds[-1]}, spent as well"
        text = f"On {count} other worlds ({seeds}) it held in {found.held['all']}; by part: {said}."
        if (lead := found.lead.interval()) is not None:
            text += f" There PAR less plain is {lead.estimate:+.1f} [{lead.lower:+.1f}, {lead.upper:+.1f}] points."
        return text if found.current else f"{text} That was with other settings or code than now."


def interval(row: FindingRow) -> str:
    """Returns a row's difference from the plain row in points, with its interval over worlds."""
    if row.effect is None:
        return ""
    found = row.effect.interval()
    bounds = "" if found is None else f" [{found.lower:+.0f}, {found.upper:+.0f}]"
    return f"{row.effect.estimate:+.1f}{bounds}"


def finding_cells(row: FindingRow) -> list[str]:
    """Returns a row's cells: title, win rate, difference, win rate at equal KL, KL, tokens per answer, worlds with an
    alarm."""
    equal = row.at_equal_kl
    alarmed = sum(count > 0 for count in row.alarms.values())
    return [
        row.title,
        f"{row.mean('final'):.1f}",
        interval(row),
        "" if equal is None else f"{equal:.0f}",
        f"{row.mean('kl'):.1f}",
        f"{row.mean('length'):.0f}",
        f"{alarmed} of {len(row.alarms)}" if alarmed else "none",
    ]


def outcome(rate: float, hacked: int, plain_rate: float, plain_hacked: int, worlds: int) -> str:
    """Returns the end of a design beside the plain reward's: 'ends higher, at 35 %, but is hacked, too'.

    Args:
        rate, plain_rate: win rates over the SFT model in percent, means over worlds.
        hacked, plain_hacked: number of worlds in which the row is hacked.
        worlds: their number.
    """
    ends, plain_ends = round(rate), round(plain_rate)
    side = "higher" if ends > plain_ends else "lower" if ends < plain_ends else "level"
    low = ", below 50 %" if not hacked and ends < 50 else ""
    worse = side != "higher" or low
    link = "and" if bool(worse) == bool(hacked) else "but"
    too = ", too" if hacked == plain_hacked == worlds else ""
    return f"ends {side}, at {ends} %{low}, {link} {hacked_text(hacked, worlds)}{too}"


def hacked_text(hacked: int, worlds: int) -> str:
    """'is hacked', 'is hacked in 1 of 2 worlds', 'is not hacked'."""
    if not hacked:
        return "is not hacked"
    return "is hacked" if hacked == worlds else f"is hacked in {of_worlds(hacked, worlds)}"


def of_worlds(count: int, every: int | None = None) -> str:
    """'2 worlds', '1 of 2 worlds'."""
    return f"{count} world{'s' * (count != 1)}" if every is None else f"{count} of {every} worlds"


def parts(measured: Measured) -> dict[str, bool]:
    """Returns which parts of the finding hold in one world.

    Args:
        measured: measures of `tasks.report.hacking_runs` by row.
    """
    plain, bounded, dense = (measured[row] for row in (PLAIN, BOUNDED, DENSE))
    return {
        "the plain reward is hacked": is_hacked(plain),
        "PAR ends above it": bounded["final"] > plain["final"],
        "Segment is hacked, too": is_hacked(dense),
    }


def settings_digest(root: Path) -> str:
    """Returns a digest of the settings and stage versions behind the rows that the finding is about."""
    scale, rows, found = Scale(root, DEFAULT_SCALE), load_rows(root, DEMO_PAPER), {}
    for row in (rows[name] for name in FINDING_ROWS if name in rows):
        for stage in scale.row(row, seed=0):  # every seed has the same settings
            settings = [read_settings(address.under(root)) for address in stage.addresses]
            found[stage.stage] = [stage_version(root, stage.module), settings]
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def read_check(root: Path) -> FindingCheck | None:
    """Returns the finding on other seeds from its record; None without a record.

    Raises:
        DataError: a damaged record.
    """
    if not (root / RECORD).exists():
        return None
    record, damaged = read_object(root / RECORD), partial(DataError, file=str(RECORD), remedy=f"git checkout {RECORD}")
    for seed, rows in record["seeds"].items():
        if not seed.isdigit() or not set(FINDING_ROWS) <= rows.keys():
            raise damaged(f"{seed} is not a seed with the rows {PLAIN}, {BOUNDED} and {DENSE}", field="seeds")
    if not record["seeds"]:
        raise damaged("has no seed", field="seeds")
    by_seed = {int(seed): parts(rows) for seed, rows in record["seeds"].items()}
    names = next(iter(by_seed.values()))
    held = {name: sum(each[name] for each in by_seed.values()) for name in names}
    held["all"] = sum(all(each.values()) for each in by_seed.values())
    # a row has one run in each world
    finals = {
        name: {seed: [rows[name]["final"]] for seed, rows in record["seeds"].items()} for name in (BOUNDED, PLAIN)
    }
    lead = paired(finals, BOUNDED, PLAIN)
    return FindingCheck(tuple(sorted(by_seed)), held, lead, record["settings"] == settings_digest(root))


def read_finding(root: Path) -> DemoFinding | None:
    """Returns the finding from the demo's results; None where a row or world is missing, or no demo is set."""
    demo = run_settings(root).demo.get(DEMO_PAPER)
    if demo is None or PLAIN not in demo.rows:
        return None
    results, rows = root / "results" / DEFAULT_SCALE, load_rows(root, DEMO_PAPER)
    names = [PLAIN, *(name for name in demo.rows if name != PLAIN)]
    runs: dict[str, dict[int, HackingRun]] = {name: {} for name in names}
    for name in names:
        for seed in demo.seeds:
            if (run := read_hacking_run(results / DEMO_PAPER / "policy" / name / str(seed), seed)) is None:
                return None
            metrics_file = str(Path(run.path) / "result" / "metrics.json")
            if missing := [MEASURES[measure] for measure in NEEDED_MEASURES if measure not in run.measures]:
                raise DataError("is missing", file=metrics_file, field=missing[0], remedy="Run the demo again")
            runs[name][seed] = run
    backbone, model = rows[PLAIN].backbone, rows[PLAIN].reward_models[0].name
    finals = {name: {seed: [run.measures["final"]] for seed, run in own.items()} for name, own in runs.items()}
    rise = proxy_rise(runs[PLAIN], results / DEMO_PAPER / "normaliser" / model)
    found = []
    for name in names:
        metrics = {seed: read_object(Path(run.path) / "result" / "metrics.json") for seed, run in runs[name].items()}
        found.append(
            FindingRow(
                name,
                str(read_settings(rows[name].path.under(root)).get("title", name)),
                runs[name],
                {seed: int(own.get("hacking_alarms", 0)) for seed, own in metrics.items()},
                None if name == PLAIN else paired(finals, name, PLAIN),
                sum(finals[name][seed] > finals[PLAIN][seed] for seed in demo.seeds),
                rise if name == PLAIN else None,
            )
        )
    predicted, true = [], []
    for seed in demo.seeds:
        predicted.append(_metric(results / DEMO_PAPER / "reward_model" / model / str(seed), "accuracy"))
        # a world that draws its own data has a folder of it; else all seeds share one
        data = results / "shared" / "data" / backbone
        true.append(true_labels((data / str(seed) if (data / str(seed)).exists() else data) / "result"))
    prompts = len(_answers(Path(found[0].runs[demo.seeds[0]].path)))
    accuracy = sum(predicted) / len(predicted)
    known = [share for share in true if share is not None]
    answers = shown_answers(results / "shared" / "sft" / backbone / str(demo.seeds[0]), found)
    share = sum(known) / len(known) if known else None
    return DemoFinding(tuple(found), demo.seeds, prompts, accuracy, share, answers, read_check(root))


def proxy_rise(runs: Mapping[int, HackingRun], normalisers: Path) -> float:
    """Returns the mean over worlds of a policy's `proxy_gain`, in standard deviations of its reward model's rewards.

    Args:
        runs: of the policy, by world.
        normalisers: the folder of its reward model's normalisers, by world.
    """
    deviations = {seed: _metric(normalisers / str(seed), "sequence_std") for seed in runs}
    return mean_and_standard_error([run.measures["proxy_gain"] / deviations[seed] for seed, run in runs.items()])[0]


def _metric(out: Path, name: str) -> float:
    """Returns a metric of a stage of the demo.

    Raises:
        DataError: its result lacks it.
    """
    file = out / "result" / "metrics.json"
    if name not in (metrics := read_object(file)):
        raise DataError("is missing", file=str(file), field=name, remedy="Run the demo again")
    return metrics[name]


def shown_answers(sft: Path, rows: Sequence[FindingRow]) -> tuple[Answer, ...]:
    """Returns each policy's answer to one prompt: the prompt where the true reward of the plain row's answer, less that
    of the SFT model's, is the median."""
    outs = {"SFT model": sft} | {row.title: Path(next(iter(row.runs.values())).path) for row in rows}
    by_prompt = {title: _answers(out) for title, out in outs.items()}
    start, plain = by_prompt["SFT model"], by_prompt[rows[0].title]
    shared = [prompt for prompt in start if all(prompt in answers for answers in by_prompt.values())]
    if not shared:
        return ()
    ordered = sorted(shared, key=lambda prompt: plain[prompt]["true_reward"] - start[prompt]["true_reward"])
    chosen = ordered[len(ordered) // 2]
    return tuple(
        Answer(title, str(row["prompt"]), str(row["response"]), float(row["true_reward"]))
        for title, row in ((title, answers[chosen]) for title, answers in by_prompt.items())
    )


def _answers(out: Path) -> dict[str, dict[str, Any]]:
    """Returns a model's answers to the prompts of the testbed's benchmark `alpaca`, by id."""
    rows = read_jsonl(out / "result" / "generations.jsonl")
    shown = [row for row in rows if row["benchmark"] == "alpaca" and row.get("true_reward") is not None]
    return {row["id"]: row for row in shown if "prompt" in row and "response" in row}
