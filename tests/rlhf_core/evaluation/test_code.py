"""The text of generated code in an answer."""

import pytest

from rlhf_core.evaluation.answers import extract_code

INSTALLED = "```bash\npip install numpy\n```\nThen:\n```python\nx = 1\n```"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("Sure:\n```python\nx = 1\n```\nand\n```\ny = 2\n```", "x = 1\n"),
        ("```py\nx = 1", "x = 1"),
        ("x = 1", "x = 1"),
        (INSTALLED, "x = 1\n"),
        (f"```\nout\n```\n{INSTALLED}", "x = 1\n"),
        ("```bash\nls\n```\n```\nx = 1\n```", "x = 1\n"),
    ],
)
def test_code_is_taken_from_the_first_fence_of_python(answer, code):
    assert extract_code(answer) == code
