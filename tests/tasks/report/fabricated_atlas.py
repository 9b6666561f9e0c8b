"""A clone with the project's studies and fabricated records, to look at the atlas before any world has run.

python -m tests.tasks.report.fabricated_atlas FOLDER     # FOLDER/clone, FOLDER/report/atlas.html

No number here was measured: each row has a level and a way to move from the SFT model, and worlds differ by noise.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.params.studies import StudySpec, read_study
from tasks.report.atlas_page import write_atlas
from tasks.studies.records import registration_of
from tests.tasks.studies.synthetic_study import commit_records, git, write_worlds

STUDIES = Path(__file__).resolve().parents[3] / "studies"
#: Level of each row in points, and the gain of a later level of a dial.
LEVELS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "attention": {"attention": (56, 4), "va": (58, 0), "response": (54, 0), "token": (52, 0)},
    "credit": {"bandit": (55, 0), "segment": (55, 3), "token": (53, 1), "segment-as-bandit": (55, 0), "gold": (56, 3)},
    "gate": {"gate": (58, 0.4), "sum": (57, 0), "holistic": (54, 0)},
    "shaping-again": {"vanilla": (41, 0), "kl-controlled": (57, 0), "clip": (55, 0), "lsc": (62, 0), "par": (64, 0)},
    "tokens-again": {"imitation": (48, 0), "tokens": (46, -2), "sequence": (41, 0)},
}  # fmt: skip
#: Nats per response at the end of training.
DISTANCE = {"vanilla": 14.0, "kl-controlled": 5.0, "clip": 11.0, "lsc": 7.0, "par": 6.0}


def fabricated_clone(root: Path, names: Sequence[str] = tuple(LEVELS), unfinished: Sequence[str] = ()) -> Path:
    """Makes a clone with studies of the project, all worlds of which have run but for `unfinished` ones."""
    (root / "studies").mkdir(parents=True)
    for name in names:
        shutil.copy(STUDIES / f"{name}.yaml", root / "studies")
    git(root, "init", "-q")
    git(root, "add", "studies")
    git(root, "commit", "-qm", "Studies")
    for name in names:
        spec, own = (
            read_study(root / "studies" / f"{name}.yaml"),
            registration_of(root, root / "studies" / f"{name}.yaml"),
        )

        def value(index: int, cell: str, row: str, name: str = name, spec: StudySpec = spec) -> float:
            return _value(name, spec, index, cell, row)

        worlds = spec.worlds // 2 if name in unfinished else spec.worlds
        for index, file in enumerate(write_worlds(root, own, value, worlds, commit=False)):
            record = json.loads(file.read_text(encoding="utf-8"))
            for cell, made in record["cells"].items():
                _complete(made, name, spec, index, cell)
            file.write_text(json.dumps(record), encoding="utf-8")
    commit_records(root)
    return root


def _value(name: str, spec: StudySpec, index: int, cell: str, row: str) -> float:
    """Returns a row's metric: its level, what later levels of the dials add, and noise of the world and of the run."""
    level, gain = LEVELS[name].get(row, (53, 1))
    later = sum([*spec.dials[dial]].index(place) for dial, place in spec.cells[cell].items())
    world, run = random.Random(f"{name} {index}"), random.Random(f"{name} {index} {cell} {row}")
    return level + gain * later + world.gauss(0, 2) + run.gauss(0, 1.6)


def _complete(made: dict[str, Any], name: str, spec: StudySpec, index: int, cell: str) -> None:
    """Adds the metrics that a study's page shows, and curves that a row's policy might have."""
    for row, run in made["rows"].items():
        noise = random.Random(f"{name} {index} {cell} {row} curve")
        value = run["metrics"].pop("win_rate_vs_sft")
        run["metrics"] |= {shown: 1.0 + noise.random() for shown in spec.shows if shown.count("/") != 3}
        run["metrics"] |= {spec.metric: value, "kl": DISTANCE.get(row, 6.0), "proxy_reward_sft": -0.5}
        if row.startswith("best-of-n"):
            run |= {"curve": {}, "training": {}}
            run["origin"]["stage"] = "best_of_n"
        else:
            run["curve"]["points"] = _points(value, DISTANCE.get(row, 6.0), noise) if name == "shaping-again" else []
            for last in run["curve"]["points"][-1:]:  # the evaluation that the metrics are of
                last.update({metric: run["metrics"][metric] for metric in last if metric in run["metrics"]})
    if name == "gate":
        rate = 0.75 if cell.endswith("-accurate") else 0.4
        draw = random.Random(f"gate {index} {cell}").random() < rate
        chosen = dict.fromkeys(("relevance", "factuality", "completeness", "length"), 0.0)
        chosen["factuality" if draw else "length"] = 1.0
        metrics = {f"chosen/{aspect}": share for aspect, share in chosen.items()} | {"right": float(draw)}
        made["above"]["selection/qa"] = {**made["above"]["sft/phi3-mini"], "metrics": metrics}


def _points(end: float, distance: float, noise: random.Random) -> list[Mapping[str, Any]]:
    """Returns evaluations on the way: the proxy rises throughout, the win rate falls where the end is below the SFT
    model."""
    points: list[Mapping[str, Any]] = []
    for step in range(1, 10):
        way = step / 9
        over = 30 * way - (80 - end) * way**2 if end < 50 else (end - 50) * (2 * way - way**2)
        moved = {"step": 4 * step, "kl": distance * way * way * (1 + 0.1 * noise.random()), "n": 128}
        points.append({**moved, "win_rate_vs_sft": 50 + over + noise.gauss(0, 1) * (way < 1),
                       "proxy_reward": -0.5 + 1.1 * distance**0.5 * way + noise.gauss(0, 0.05)})  # fmt: skip
    return points


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    print(write_atlas(fabricated_clone(folder / "clone", unfinished=("tokens-again",)), folder / "report"))
