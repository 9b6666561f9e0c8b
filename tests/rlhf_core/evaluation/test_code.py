"""Generated code: its text in an answer, and pass@k."""

import itertools

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.code import extract_code, judge_samples, pass_at_k, summarise_passes
from tests.rlhf_core.evaluation.test_sandbox import GOOD, isolated

TESTS = ("assert f(1) == 2", "assert f(-1) == 0")


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 1), (7, 3, 5)])
def test_pass_at_k_counts_subsets(n, c, k):
    subsets = list(itertools.combinations(range(n), k))
    share = sum(any(i < c for i in subset) for subset in subsets) / len(subsets)
    assert pass_at_k(n, c, k) == pytest.approx(share)


def test_pass_at_k_bounds():
    with pytest.raises(DataError):
        pass_at_k(3, 1, 4)


def test_code_is_taken_from_the_first_fence():
    assert extract_code("Sure:\n```python\nx = 1\n```\nand\n```\ny = 2\n```") == "x = 1\n"
    assert extract_code("```py\nx = 1") == "x = 1"
    assert extract_code("x = 1") == "x = 1"
    installed = "```bash\npip install numpy\n```\nThen:\n```python\nx = 1\n```"
    assert extract_code(installed) == "x = 1\n"
    assert extract_code(f"```\nout\n```\n{installed}") == "x = 1\n"
    assert extract_code("```bash\nls\n```\n```\nx = 1\n```") == "x = 1\n"


@isolated
def test_samples_are_summarised_per_problem():
    results = judge_samples([[GOOD, "def f(x): return 0"], [GOOD, GOOD]], [TESTS, TESTS])
    summary = summarise_passes(results, (1, 2))
    assert summary["pass@1"] == pytest.approx(0.75)
    assert summary["pass@2"] == 1.0
    assert (summary["n_passed"], summary["n_failed"], summary["n_problems"]) == (3, 1, 2)
    with pytest.raises(DataError, match="one of each per problem"):
        judge_samples([[GOOD]], [])
