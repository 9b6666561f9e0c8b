"""Every library that the project's card names is imported by product code that a test file runs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: For each library: a module that imports it, and the test file that runs that module's path.
CARD = {
    "prefect": "flows/scheduler.py flows/test_scheduler.py",
    "mlflow": "tasks/tracking/mirror.py tasks/test_tracking.py",
    "torch": "rlhf_core/models/generation.py rlhf_core/models/test_generation.py",
    "transformers": "rlhf_core/models/loading.py rlhf_core/models/test_families.py",
    "accelerate": "rlhf_core/distributed.py rlhf_core/test_distributed.py",
    "deepspeed": "rlhf_core/deepspeed_stepper.py rlhf_core/test_distributed.py",
    "datasets": "rlhf_core/data/sources.py rlhf_core/data/test_sources.py",
    "sklearn": "rlhf_core/evaluation/length_controlled.py rlhf_core/evaluation/test_length_controlled.py",
    "dvc": "tasks/dvc/stage_results.py tasks/test_stage_results.py",
    "pandera": "rlhf_core/data/schemas.py rlhf_core/data/test_rows.py",
}


def imports(path: Path) -> set[str]:
    """Top-level names of everything that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("library", CARD)
def test_product_code_imports_each_library_on_a_path_that_a_test_runs(library: str) -> None:
    module, test = CARD[library].split()
    assert library in imports(ROOT / module)
    assert (ROOT / "tests" / test).is_file()
