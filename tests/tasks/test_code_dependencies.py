"""Code and data of a user's own are dependencies of the stages that read them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tasks.graph.code_dependencies import Reads, reads


@pytest.fixture
def project(tmp_path: Path) -> Path:
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
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


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


def test_what_two_files_name_counts_once(project: Path) -> None:
    assert Reads(("b",), ("x==1",)) | Reads(("a", "b")) == Reads(("a", "b"), ("x==1",))
