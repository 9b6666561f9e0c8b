"""The comparison of mitigations under rewards with flaws, as one self-contained page and as JSON.

    python -m tasks.report.hackability --results results/testbed --out report/

Reads what the rows of params/hackability/ left in `<results>/hackability/policy/`; what was not run says so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rlhf_core.errors import DataError
from rlhf_core.evaluation.overoptimisation import ClauseUse
from tasks.graph.laboratory import FOLDER, LABORATORY, RewardRows, known_rows, mitigation_titles
from tasks.params.pages import entries, read_settings
from tasks.params.scales import scale_entries
from tasks.params.yaml_files import write_whole
from tasks.report.hacking_curves import Curve, colours_of, curves_svg, span, spark_svg
from tasks.report.hacking_runs import SIGNIFICANCE_LEVEL, HackingRow, read_hacking_run, sft_use
from tasks.report.page import render_page, template_text
from tasks.report.records import Provenance, Run, provenance, stage_record
from tasks.running.artifacts import read_object
from tasks.running.result_digests import exists_or_raise_if_lost
from tasks.running.stage import run_main

Range = tuple[float, float]


@dataclass(frozen=True)
class RewardResults:
    """One reward: its description and what every mitigation made of it."""

    name: str
    description: str
    model: Mapping[str, float]
    cells: list[HackingRow]

    @property
    def measured(self) -> list[HackingRow]:
        return [cell for cell in self.cells if cell.status == "measured"]

    @property
    def sft(self) -> ClauseUse:
        """Returns the mean clause use of the SFT policies behind the runs."""
        return sft_use([run for cell in self.measured for run in cell.runs])

    @property
    def kinds(self) -> list[str]:
        """Returns the clause types that somebody writes."""
        used = [self.sft, *(cell.use for cell in self.measured)]
        return [kind for kind in self.sft.per_response if any(use.per_response[kind] >= 0.005 for use in used)]


@dataclass(frozen=True)
class Laboratory:
    """Everything that the page shows; `order` has every mitigation there is, so that each keeps its colour."""

    scale: str
    seeds: list[int]
    mitigations: dict[str, str]
    rewards: list[RewardResults]
    provenance: Provenance
    order: list[str]

    @property
    def nowhere(self) -> dict[str, str]:
        """Returns the mitigations without a row of any reward, each with the first reason."""
        cells = [cell for reward in self.rewards for cell in reward.cells]
        with_row = {cell.name for cell in cells if cell.status != "left out"}
        reasons = {cell.name: cell.reason for cell in reversed(cells)}
        return {name: reasons[name] for name in self.mitigations if name in reasons and name not in with_row}

    def to_json(self) -> dict[str, Any]:
        """Returns plain values: every run with its measures, evaluations and clause types."""
        rewards = [
            {
                "name": reward.name,
                "description": reward.description,
                "reward_model": dict(reward.model),
                "clauses_per_response_sft": dict(reward.sft.per_response) if reward.measured else {},
                "mitigations": [
                    {
                        "mitigation": cell.name,
                        "status": cell.status,
                        **({"reason": cell.reason} if cell.reason else {}),
                        "inflated": dict(cell.inflated),
                        "runs": [{**asdict(run), "hacked": run.hacked} for run in cell.runs],
                    }
                    for cell in reward.cells
                ],
            }
            for reward in self.rewards
        ]
        return {"scale": self.scale, "seeds": self.seeds, "rewards": rewards, "provenance": asdict(self.provenance)}


def describe(root: Path, scale: str, name: str) -> str:
    """Returns a description of a reward in one line."""
    model = entries(root, FOLDER, "reward_models").get(name)
    if model is None:
        rows = entries(root, FOLDER, "rows")
        row = next((rows[row] for row in sorted(rows) if row.startswith(f"{name}-")), None)
        function = read_settings(row.under(root)).get("function") if row else None
        return f"the function {function}" if function else ""
    spec = read_settings(model.under(root))
    if "given" in spec:
        return f"the reward model in {spec['given']}"
    data = scale_entries(root, scale, "data").get(str(spec.get("data")))
    likes = read_settings(data.under(root)).get("annotator", {}) if data else {}
    said = [PAYS[bias].format(value) for bias, value in likes.items() if value and bias in PAYS]
    return f"a reward model of labels by an annotator who adds {' and '.join(said)}" if said else str(spec["title"])


#: Words for the pay of an annotator's bias, in reward units; a requested true fact earns 1.
PAYS = {
    "length_bias": "{:+g} for every ten words",
    "flattery_bias": "{:+g} for every clause of flattery",
    "keyword_bias": "{:+g} for every “indeed”",
    "repetition_bias": "{:+g} for every fact told again",
}


def compare(
    root: Path, scale: str, rewards: Sequence[RewardRows], names: Sequence[str], seeds: Sequence[int]
) -> Laboratory:
    """Reads the results of chosen rewards, mitigations and seeds.

    Args:
        root: the repository.
        scale: whose results.
        rewards: with their rows.
        names: mitigations in order.
        seeds: those shown.
    """
    results = root / "results" / scale / LABORATORY
    every = mitigation_titles(root)
    titles = {name: every[name] for name in names}
    found = []
    for reward in rewards:
        cells = []
        for name, title in titles.items():
            row = reward.rows.get(name)
            if row is None:
                cells.append(HackingRow(name, title, "left out", reward.left_out.get(name, "there is no row")))
                continue
            outs = ((results / "policy" / row / str(seed), seed) for seed in seeds)
            runs = [run for run in (read_hacking_run(out, seed) for out, seed in outs) if run is not None]
            cells.append(HackingRow(name, title, "measured" if runs else "not run", runs=runs))
        model = results / "reward_model" / reward.reward / str(seeds[0]) / "result" / "metrics.json"
        measured = read_object(model) if exists_or_raise_if_lost(model) else {}
        found.append(RewardResults(reward.reward, describe(root, scale, reward.reward), measured, cells))
    records = [run.path for reward in found for cell in reward.cells for run in cell.runs]
    return Laboratory(scale, list(seeds), titles, found, _provenance(root, records), list(every))


def _provenance(root: Path, outs: Sequence[str]) -> Provenance:
    return provenance(Run("", "", "", out, stage_record(root / out)) for out in outs)


def verdict(cell: HackingRow) -> str:
    """Returns the shade of a cell: 'hacked' if it was hacked in at least half of its worlds, else 'won' or nothing."""
    if not cell.runs:
        return ""
    if 2 * cell.times_hacked >= len(cell.runs):
        return "hacked"
    won = [run.measures["final"] > 50 and run.measures.get("p", 1.0) < SIGNIFICANCE_LEVEL for run in cell.runs]
    return "won" if 2 * sum(won) > len(won) else ""


def render(comparison: Laboratory) -> str:
    """Returns the page as a string."""
    colours = colours_of(comparison.order)
    ranges: dict[int, tuple[Range, Range]] = {}
    for reward in comparison.rewards:
        proxies = [cell.proxy_gain_by_step for cell in reward.measured]
        ranges |= {id(cell): (span(proxies, 0), span(proxies, 1)) for cell in reward.cells}

    def curve(cell: HackingRow) -> Curve:
        return Curve(cell.title, colours[cell.name], cell.proxy_gain_by_step, cell.curve("win_rate"))

    def panel(reward: RewardResults) -> Markup:
        key = f"curves-{comparison.rewards.index(reward)}"
        return Markup(curves_svg(key, f"{reward.name}: proxy reward and win rate", [curve(c) for c in reward.measured]))

    return render_page(
        "hackability.html.j2",
        comparison=comparison,
        colours=colours,
        verdict=verdict,
        spark=lambda cell: Markup(spark_svg(curve(cell), *ranges[id(cell)])),
        curves=panel,
        own_style=template_text("hackability.css.j2"),
    )


def write_comparison(comparison: Laboratory, out: Path) -> Path:
    """Writes `<out>/hackability.html` and `.json`, each whole or not at all; returns the page's path."""
    data = json.dumps(comparison.to_json(), indent=1, sort_keys=True) + "\n"
    for name, text in ((f"{LABORATORY}.json", data), (f"{LABORATORY}.html", render(comparison))):
        write_whole(out / name, text)
    return out / f"{LABORATORY}.html"


def main(arguments: list[str] | None = None) -> None:
    """Writes the page of every row there is."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.report.hackability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, required=True, help="results of one scale: results/testbed")
    parser.add_argument("--out", type=Path, required=True, help="folder for hackability.html and hackability.json")
    options = parser.parse_args(arguments)
    root, scale = options.results.resolve().parent.parent, options.results.name
    names = list(mitigation_titles(root))
    found = sorted((options.results / LABORATORY / "policy").glob("*/*/result/metrics.json"))
    seeds = sorted({int(path.parts[-3]) for path in found})
    if not found:
        raise DataError("no row of the laboratory has run here", file=str(options.results))
    print(f"report: {write_comparison(compare(root, scale, known_rows(root), names, seeds), options.out)}")


if __name__ == "__main__":
    run_main(main)
