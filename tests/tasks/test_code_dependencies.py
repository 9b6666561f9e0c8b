"""Code and data of a user's own are dependencies of the stages that read them."""

from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.dvc.stale import read_state
from tasks.graph.code_dependencies import Reads, reads
from tasks.graph.dvc_files import pipeline_file
from tasks.graph.items import Graph, Item
from tasks.params.pages import Address
from tests.small_repository import command


def write_project(root: Path) -> Path:
    """Writes a project's own code and data."""
    files = {
        "own_rewards.py": "import math\nfrom own_scales import SCALE\n\n\ndef brevity(batch):\n    import own_late\n",
        "own_scales.py": "SCALE = -1\n",
        "own_late.py": "import own_rewards\n",
        "lab/__init__.py": "",
        "lab/aspects/__init__.py": "from .words import WORDS\n",
        "lab/aspects/polite.py": "from . import tones\nfrom .. import shared\nfrom rlhf_core.aspects import Density\n",
        "lab/aspects/tones.py": "",
        "lab/aspects/words.py": "WORDS = ()\n",
        "lab/shared.py": "import lab.aspects.polite\n",
        "lab/unused.py": "",
        "rlhf_core/aspects/__init__.py": "",
        "broken.py": "def (",
        "my_data/pairs.train.jsonl": "",
        "my_data/pairs.test.jsonl.gz": "",
        "my_data/other.train.jsonl": "",
        "models/mine/model.safetensors": "",
        "params/segment/rows.yaml": "",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path)


LAB = ["lab/__init__.py", "lab/aspects/__init__.py", "lab/aspects/polite.py", "lab/aspects/tones.py"]
LAB += ["lab/aspects/words.py", "lab/shared.py"]


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ({"components": [{"function": "own_rewards:brevity"}]}, ["own_late.py", "own_rewards.py", "own_scales.py"]),
        ({"aspect": {"kind": "lab.aspects.polite:Politeness"}}, LAB),
        ({"judge": {"kind": "broken:Judge"}}, ["broken.py"]),
        ({"function": "nowhere:at_all"}, []),
        ({"function": "rlhf_core.aspects:Length"}, []),
        (
            {"source": "directory", "directory": "my_data", "preference": ["pairs"]},
            ["my_data/pairs.test.jsonl.gz", "my_data/pairs.train.jsonl"],
        ),
        ({"given": "models/mine"}, ["models/mine"]),
        ({"source": "models"}, ["models"]),
        ({"source": "Qwen/Qwen2.5-0.5B", "title": "models", "notes": "see /etc\nand models/mine"}, []),
        ({"row": "params/segment/rows.yaml"}, []),
    ],
)
def test_settings_read_what_they_name_and_what_that_imports(
    project: Path, settings: dict[str, Any], files: list[str]
) -> None:
    assert reads(project, settings) == Reads(tuple(files))


def test_an_installed_package_counts_by_its_version(project: Path) -> None:
    found = reads(project, {"kind": "yaml:YAMLObject"})
    assert found == Reads((), (f"PyYAML=={metadata.version('pyyaml')}",))
    assert reads(project, {"kind": "json:loads"}) == Reads()


#: A stage that leaves what a stage of the project leaves.
STAND_IN = """
import sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
for name in ("result", "record"):
    (out / name).mkdir(parents=True)
    (out / name / "made.txt").write_text(out.name)
"""
ROWS = {
    "brevity": {"components": [{"function": "own_rewards:brevity"}]},
    "data": {"directory": "my_data", "preference": ["pairs"]},
    "plain": {"kind": "reward"},
    "polite": {"aspect": {"kind": "lab.aspects.polite:Politeness"}},
}


def write_graph(root: Path) -> None:
    """Writes dvc.yaml with a stage for each row."""
    stages = Graph("testbed")
    for name in ROWS:
        arguments = {"spec": Address(f"params/lab/rows.yaml:{name}")}
        stages.add([Item("samples", name, arguments, f"results/{name}", "lab")])
    (root / "dvc.yaml").write_text(yaml.safe_dump(pipeline_file(root, stages, Path())))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with a stage for each row, all of which ran."""
    root = write_project(tmp_path_factory.mktemp("made"))
    (root / "params" / "lab").mkdir(parents=True)
    (root / "params" / "lab" / "rows.yaml").write_text(yaml.safe_dump(ROWS))
    (root / "tasks").mkdir()
    (root / "tasks" / "__init__.py").touch()
    (root / "tasks" / "samples.py").write_text(STAND_IN)
    (root / "pyproject.toml").write_text('[project]\nname = "rewardsmith"\n')
    write_graph(root)
    command(sys.executable, "-m", "dvc", "init", "-q", "--no-scm", root=root)
    command(sys.executable, "-m", "dvc", "repro", "-q", root=root, PYTHONPATH="")
    return root


@pytest.mark.parametrize(
    ("file", "text", "stale"),
    [
        ("lab/aspects/words.py", "WORDS = ('sorry',)\n", "polite"),
        ("my_data/pairs.train.jsonl", "{}\n", "data"),
        ("my_data/other.train.jsonl", "{}\n", None),
        ("lab/unused.py", "USED = False\n", None),
    ],
)
def test_a_change_makes_the_rows_stale_that_read_it_and_no_others(
    made: Path, tmp_path: Path, file: str, text: str, stale: str | None
) -> None:
    root = Path(shutil.copytree(made, tmp_path / "copy", symlinks=True))
    (root / file).write_text(text)
    write_graph(root)  # as `rewardsmith plan` and `run` do
    found = {stage.name: stage for stage in read_state(root, ["dvc.yaml"]).values()}
    assert {name for name, stage in found.items() if stage.state != "current"} == ({stale} if stale else set())
    if stale:
        assert found[stale].reasons == (f"input {file} modified",)
