"""Small trees that `atlas`, `hackability`, `explain` and `export` read; each case has a copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rlhf_core.data.tokenizers import train_byte_level_bpe
from rlhf_core.models.loading import save_model
from tasks.commands.explain import print_credit, print_explanation
from tasks.commands.export import export
from tasks.graph.laboratory import RewardRows
from tasks.report import hackability
from tasks.report.atlas_page import write_atlas
from tasks.running.artifacts import write_jsonl
from tasks.running.result_digests import RECORD
from tests.rlhf_core.tiny_models import tiny_policy, tiny_scalar_model
from tests.small_repository import PROJECT
from tests.tasks.report.fabricated_atlas import fabricated_clone
from tests.tasks.report.fixture_results import record, sign, write
from tests.tasks.report.test_hackability_page import REWARD, write_run

#: Returns what a command shows of the tree in the present folder.
Reader = Callable[[], str]
DATA, TRAINED = Path("results/testbed/shared/data/small"), Path("results/testbed/own/reward_model/whole/0")
SOLVED, POLICY = Path("results/testbed/own/policy"), Path("results/testbed/own/policy/short/0")


def printed(command: Callable[[], object]) -> str:
    """Returns what a command prints."""
    with redirect_stdout(StringIO()) as shown:
        command()
    return shown.getvalue()


@dataclass(frozen=True)
class Tree:
    """A tree of files, made once, and what reads it.

    Attributes:
        make: writes it into a folder.
        readers: by command, with patterns of the files that each reads.
        says_changes: whether the command shows other words where a result changed, in place of refusing it.
    """

    make: Callable[[Path], object]
    readers: Mapping[str, tuple[Reader, tuple[str, ...]]]
    says_changes: bool = False


def link_project(root: Path) -> None:
    """Makes a folder of results whose settings and code are the project's."""
    root.mkdir()
    for name in ("params", "params.yaml", "tasks", "pyproject.toml"):
        (root / name).symlink_to(PROJECT / name)


def _make_studied(root: Path) -> None:
    fabricated_clone(root, ("tokens-again",))


def _atlas() -> str:
    write_atlas(Path(), Path("page"))
    return Path("page", "atlas.md").read_text() + Path("page", "atlas.html").read_text()


def make_laboratory(root: Path) -> None:
    link_project(root)
    write_run(root, "length-vanilla", 0, [50, 60, 30], 0.001, **{"hacking/onset_step": 4, "hacking/onset_kl": 9.0})
    write_run(root, "length-par", 0, [50, 60, 65], 0.001)
    model = root / "results/testbed/hackability/reward_model/length/0"
    write(model / "result" / "metrics.json", {"accuracy": 0.7})
    write(model / RECORD, record("reward_model", 0))
    sign(root)


def laboratory() -> str:
    rewards = [RewardRows(REWARD.reward, REWARD.rows, {})]
    file = hackability.write_comparison(
        hackability.compare(Path(), "testbed", rewards, ["vanilla", "par"], [0]), Path("page")
    )
    return file.read_text() + Path("page", "hackability.json").read_text()


def make_trained(root: Path) -> None:
    """Writes a reward model, a policy, the data of both, and two rows with credit of the same solutions."""
    link_project(root)
    texts = ["the cat sat on the mat", "a dog ran to the cat"]
    tokenizer = train_byte_level_bpe(texts * 9, 300)
    row = {"id": "1", "prompt": texts[0], "chosen": texts[1], "rejected": "a cat"}
    data = {"source": "testbed", "template": "plain", "limits": {"prompt": 64, "total": 96}, "rows": {}, "seed": 0}
    write(root / DATA / "result" / "data.json", data)
    write(root / DATA / "result" / "preference.validation.jsonl", [row, row])
    write(root / DATA / "result" / "prompts.jsonl", [row])
    scalar, policy = tiny_scalar_model(vocabulary=len(tokenizer)), tiny_policy(vocabulary=len(tokenizer))
    scalar.save(root / TRAINED / "result" / "model", {"segmenter": {"kind": "bandit"}, "aggregation": "mean"})
    save_model(policy.model, root / POLICY / "result" / "model")
    for out, stage in ((DATA, "prepare"), (TRAINED, "reward_model"), (POLICY, "policy")):
        if stage != "prepare":
            tokenizer.save_pretrained(root / out / "result" / "model")
            write(root / out / "result" / "metrics.json", {"accuracy": 0.7})
        write(root / out / RECORD, {**record(stage, 0), "inputs": {f"{DATA}/result": "ab"}})
    solution = {"id": "1", "prompt": "2 + 2?", "response": "2 5", "rewrite": "4"}
    credit = {**solution, "tokens": ["2", " 5"], "mistaken": [False, True], "credit": [0.5, -1.0]}
    for name in ("one", "other"):
        (root / SOLVED / name / "0" / "result").mkdir(parents=True)
        write_jsonl(
            root / SOLVED / name / "0" / "result" / "credit.jsonl", [credit, {**credit, "unclipped": [0.5, -2.0]}]
        )
        write(root / SOLVED / name / "0" / RECORD, record("policy", 0))
    sign(root)


def exported(out: Path) -> Reader:
    def read() -> str:
        export(out / "result", Path("model"))
        return "".join(f"{file.name} {file.stat().st_size}\n" for file in sorted(Path("model").iterdir()))

    return read


TREES = (
    Tree(
        _make_studied,
        {
            "atlas": (_atlas, ("studies/*", "reference/studies/**/*")),
        },
        says_changes=True,
    ),
    Tree(make_laboratory, {"hackability": (laboratory, ("results/testbed/hackability/*/*/*/*/*",))}),
    Tree(
        make_trained,
        {
            "explain": (
                lambda: printed(lambda: print_explanation(TRAINED / "result", "the cat", "a dog ran")),
                (f"{TRAINED}/**/*.json", f"{DATA}/*/data.json", f"{DATA}/record/*"),
            ),
            "credit": (
                lambda: printed(lambda: print_credit(Path("results/testbed"), ["one", "other"], 0)),
                (f"{SOLVED}/o*/*/*/*",),
            ),
            "export": (exported(TRAINED), (f"{TRAINED}/**/*", f"{DATA}/*/*")),
            "export of a policy": (exported(POLICY), (f"{POLICY}/**/*", f"{DATA}/*/*")),
        },
    ),
)
