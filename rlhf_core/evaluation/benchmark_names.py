"""Names of the benchmarks that a data set can have beside arithmetic and code, and the sizes of the published ones."""

#: `held_out` has prompts of the preference data's test split.
DIALOGUE_BENCHMARKS = ("alpaca", "arena", "ood", "mtbench", "held_out")
CHOICE_TASKS = ("arc", "truthfulqa", "winograd", "hellaswag", "mmlu")
#: Columns of generated code, and the items of the published sets: of LiveCodeBench those of release v5.
CODE_BENCHMARKS = {"mbpp_base": 378, "mbpp_plus": 378, "humaneval_base": 164, "humaneval_plus": 164, "livecode": 880}
#: Items of the published benchmarks; a copy with fewer is partial.
OFFICIAL_ITEMS = {"alpaca": 805, "arena": 500, "mtbench": 80}
#: Questions of the test sets that RLMEC is measured on, by column; MMLU's mathematics as in its evaluation.
OFFICIAL_QUESTIONS = {
    "arc": 2376, "ecqa": 2194, "gsm8k": 1319, "math": 5000, "mm": 974, "obqa": 500, "qasc": 926, "svamp": 1000,
}  # fmt: skip
#: Categories of MT-Bench whose answers are judged beside a reference.
REFERENCE_CATEGORIES = ("math", "reasoning", "coding")
#: Temperature at which MT-Bench's answers are sampled, by category. Source: FastChat, `llm_judge`.
CATEGORY_TEMPERATURES = {
    "writing": 0.7,
    "roleplay": 0.7,
    "extraction": 0.0,
    "math": 0.0,
    "coding": 0.0,
    "reasoning": 0.0,
    "stem": 0.1,
    "humanities": 0.1,
}
