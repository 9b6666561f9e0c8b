"""Multiple choice and word problems by lm-evaluation-harness, on any policy of the project."""
