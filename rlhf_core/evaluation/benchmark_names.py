"""Names of the benchmarks that a data set can have beside arithmetic and code."""

DIALOGUE_BENCHMARKS = ("alpaca", "arena", "ood", "mtbench")
CHOICE_TASKS = ("arc", "truthfulqa", "winograd", "hellaswag", "mmlu")
