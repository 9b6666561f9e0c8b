"""Every library that the project's card names is imported by product code, on a path that a test runs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: For each library: a module that imports it, and a test that runs that module's path (`make test` or `make
#: test-platform`).
CARD = {
    "prefect": (
        "flows/scheduler.py",
        "tests/flows/test_scheduler.py::test_after_the_flow_a_second_run_finds_nothing_to_do",
    ),
    "mlflow": (
        "tasks/tracking/mirror.py",
        "tests/tasks/test_tracking.py::test_each_result_is_one_run_with_its_tables_as_tags",
    ),
    "torch": (
        "rlhf_core/models/generation.py",
        "tests/rlhf_core/models/test_generation.py::test_greedy_is_hugging_faces_greedy",
    ),
    "transformers": (
        "rlhf_core/models/loading.py",
        "tests/rlhf_core/models/test_families.py::test_every_core_runs_on_a_family_from_a_folder",
    ),
    "accelerate": ("rlhf_core/distributed.py", "tests/rlhf_core/test_distributed.py::test_two_ranks_end_as_one"),
    "deepspeed": (
        "rlhf_core/zero.py",
        "tests/rlhf_core/test_distributed.py::test_two_sharded_ranks_end_as_one_process",
    ),
    "datasets": (
        "rlhf_core/data/sources.py",
        "tests/rlhf_core/data/test_sources.py::test_a_data_set_saved_to_disk_is_read",
    ),
    "sklearn": (
        "rlhf_core/evaluation/length_controlled.py",
        "tests/rlhf_core/evaluation/test_length_controlled.py::test_the_fit_equals_the_procedure_written_out",
    ),
    "dvc": ("tasks/dvc/stage_results.py", "tests/tasks/test_stage_results.py::test_it_says_how_a_stage_ended"),
    "pandera": (
        "rlhf_core/data/schemas.py",
        "tests/rlhf_core/data/test_rows.py::test_the_later_of_equal_rows_is_bad_and_every_fault_of_a_row_is_kept",
    ),
}


def imports(path: Path) -> set[str]:
    """Top-level names of everything that a module imports, also inside functions, but not for types alone."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
        pending += ast.iter_child_nodes(node)
    return names


@pytest.mark.parametrize("library", CARD)
def test_product_code_imports_each_library_on_a_path_that_a_test_runs(library: str) -> None:
    module, test = CARD[library]
    assert library in imports(ROOT / module)
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    marks = {ast.unparse(mark) for mark in found.decorator_list}
    assert not any("skip" in mark or "xfail" in mark for mark in marks), f"{test} may not run"
