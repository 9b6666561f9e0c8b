"""Wrong settings, each with the parts of the refusal that it must get.

A case is (page, place, value, row, parts): the value is set at the place of the page, a dotted path that begins with an
entry; then the row is checked on the testbed, a row of tatoeba on real data. All parts are in one line of what the
check says.
"""

from __future__ import annotations

from typing import Any

NAN, INF = float("nan"), float("inf")
Case = tuple[str, str, Any, str, tuple[str, ...]]
ROWS, MODELS, BENCH = "par/rows.yaml", "par/reward_models.yaml", "scales/testbed"
BACKBONES, POLICY, STAGES = f"{BENCH}/backbones.yaml", f"{BENCH}/policy.yaml", f"{BENCH}/stages.yaml"
EVALUATION, DATA, TOKENIZERS = f"{BENCH}/evaluation.yaml", f"{BENCH}/data.yaml", f"{BENCH}/tokenizers.yaml"
ENDPOINT = {"kind": "endpoint", "model": "x", "base_url": "http://a/v1"}
VANILLA, STANDARD, PPO = "par/rows.yaml:vanilla: ", "par/reward_models.yaml:standard: ", f"{POLICY}:par_ppo: "

#: Values of one field: of another type, out of its range, not finite, misspelt, missing.
ONE_FIELD: list[Case] = [
    (ROWS, "vanilla.credit", "evensplit", "par/vanilla", (VANILLA, "credit is 'evensplit'", "'even_split'?")),
    (ROWS, "vanilla.credits", "last_token", "par/vanilla", (VANILLA, "unknown setting 'credits'", "'credit'?")),
    (ROWS, "vanilla.clamp", 0, "par/vanilla", (VANILLA, "clamp is 0", "above 0")),
    (ROWS, "vanilla.weight", NAN, "par/vanilla", (VANILLA, "weight is nan", "finite")),
    (ROWS, "vanilla.seed_offset", -1, "par/vanilla", (VANILLA, "seed_offset is -1", "at least 0")),
    (ROWS, "vanilla.lora", {"rank": 10**6}, "par/vanilla", (VANILLA, "lora.rank is 1000000", "from 1 to 65536")),
    (ROWS, "vanilla.reward_model", ["standard"], "par/vanilla", (VANILLA, "reward_model is ['standard']", "text")),
    (ROWS, "vanilla.readout.read", "valeu", "par/vanilla", (VANILLA, "readout.read is 'valeu'", "'value'?")),
    (ROWS, "vanilla.optimiser", {"kind": "PPO"}, "par/vanilla", (VANILLA, "optimiser.kind is 'PPO'", "'ppo'?")),
    (ROWS, "vanilla.optimiser.value_klip", 0.2, "par/vanilla", (VANILLA, "'value_klip'", "'value_clip'?")),
    (ROWS, "vanilla.optimiser.kl_coef", -1, "par/vanilla", (VANILLA, "optimiser.kl_coef is -1", "at least 0")),
    (ROWS, "vanilla.shaping", {"kind": "PAR"}, "par/vanilla", (VANILLA, "unknown shaping 'PAR'", "'par'?")),
    (ROWS, "vanilla.normaliser", "location", "par/vanilla",
     (VANILLA, "normaliser is 'location'", "'location_aware'?")),
    (MODELS, "standard.aggregation", "meen", "par/vanilla", (STANDARD, "aggregation is 'meen'", "'mean'?")),
    (MODELS, "standard.loss", "bradley-terry", "par/vanilla", (STANDARD, "loss is 'bradley-terry'", "_terry'?")),
    (BACKBONES, "gemma2-2b.precision", "fp16", "par/vanilla", (f"{BACKBONES}:gemma2-2b: ", "precision is 'fp16'")),
    (BACKBONES, "gemma2-2b.architecture.hidden_size", 97, "par/vanilla",
     (f"{BACKBONES}:gemma2-2b: ", "hidden_size is 97", "4 heads")),
    (BACKBONES, "gemma2-2b.architecture.hiden_size", 96, "par/vanilla",
     (f"{BACKBONES}:gemma2-2b: ", "'hiden_size'", "'hidden_size'?")),
    (BACKBONES, "gemma2-2b.training.batch", "64", "par/vanilla",
     (f"{BACKBONES}:gemma2-2b: ", "training.batch is the text '64'", "without quotes")),
    (BACKBONES, "gemma2-2b.training.schedule", "cosin", "par/vanilla",
     (f"{BACKBONES}:gemma2-2b: ", "training.schedule is 'cosin'", "'cosine'")),
    (POLICY, "par_ppo.prompt_limit", 10**6, "par/vanilla", (PPO, "prompt_limit is 1000000", "288")),
    (POLICY, "par_ppo.optimiser.actr_lr", 1, "par/vanilla", (PPO, "'optimiser.actr_lr'", "'actor_lr'?")),
    (POLICY, "par_ppo.optimiser.actor_lr", INF, "par/vanilla", (POLICY, "actor_lr is inf", "finite")),
    (POLICY, "par_ppo.optimiser.minibatch", 7, "par/vanilla", (POLICY, "minibatch 7")),
    (EVALUATION, "dialogue.judge", {"kind": "golden"}, "par/vanilla",
     (f"{EVALUATION}:dialogue: ", "judge.kind is 'golden'", "'gold'")),
    (EVALUATION, "dialogue.judge", {**ENDPOINT, "base_url": "nonsense"}, "par/vanilla",
     (f"{EVALUATION}:dialogue: ", "base_url is 'nonsense'", "http")),
    (EVALUATION, "dialogue.judge", {**ENDPOINT, "retries": -1}, "par/vanilla", (EVALUATION, "retries is -1")),
    (DATA, "ultrafeedback.source", "folder", "par/vanilla", (f"{DATA}:ultrafeedback: ", "source is 'folder'")),
    (DATA, "ultrafeedback.rows.sft", -5, "par/vanilla", (f"{DATA}:ultrafeedback: ", "sft is -5", "at least 1")),
    (TOKENIZERS, "ultrafeedback.vocabulary", 5, "par/vanilla", (f"{TOKENIZERS}:ultrafeedback: ", "vocabulary is 5")),
    (STAGES, "generative_reward_model.negative", [0.1, 0.2], "rlmec/math-rlmec", (STAGES, "negative is [0.1, 0.2]")),
    (STAGES, "selection.prompts", 1, "alarm/qa-alarm", (STAGES, "prompts is 1", "at least 2")),
    *[
        (BACKBONES, f"gemma2-2b.architecture.{name}", value, "par/vanilla", (f"{BACKBONES}:gemma2-2b: ", name, *said))
        for name, value, *said in (
            ("num_hidden_layers", 0, "is 0"), ("num_attention_heads", -4, "is -4"),
            ("num_key_value_heads", 3, "4 attention heads"), ("intermediate_size", 2.5, "is 2.5"),
            ("model_type", "lama", "'llama'?"), ("vocab_size", 640, "the tokenizer's"),
            ("initializer_range", NAN, "is nan"), ("attention_dropout", 1.5, "is 1.5"),
        )
    ],
    *[
        (f"{BENCH}/{page}.yaml", place, "lop", "par/par", ("engine is 'lop'", "'loop'"))
        for page, place in (("stages", "references.sampling.engine"), ("evaluation", "dialogue.engine"))
    ],
    (TOKENIZERS, "mathematics.vocabulary", 260, "rlmec/math-rft", (f"{TOKENIZERS}:mathematics: ", "is 260", "261")),
    (ROWS, "vanilla.shaping", {"kind": "ceil", "ceiling": {"value": NAN, "sft_deviations": 1.0}}, "par/vanilla",
     (VANILLA, "ceiling is 'nan'", "finite")),
    (STAGES, "generative_reward_model.positive", [-0.2, 0.5], "rlmec/math-rlmec", (STAGES, "positive is [-0.2, 0.5]")),
    ("rlmec/generative_reward_models.yaml", "qa.training", {"epoch": 7}, "rlmec/qa-rlmec",
     ("generative_reward_models.yaml:qa: ", "'training.epoch'", "'epochs'?")),
    (DATA, "flattery.padding", {"flatery": 0.4}, "hackability/flattery-vanilla", (DATA, "'flatery'", "'flattery'?")),
    (ROWS, "vanilla.components", [], "par/vanilla", (VANILLA, "'components'", "'credit'")),
    (ROWS, "vanilla.kind", "best_of_n", "par/vanilla", (VANILLA, "'backbone' and 'reward_model' are missing")),
]  # fmt: skip

#: Values that contradict those of other entries, names that nothing has, and what a stage needs that its inputs lack.
ACROSS: list[Case] = [
    (ROWS, "vanilla.backbone", "gemma2-2bb", "par/vanilla", (VANILLA, "backbone is 'gemma2-2bb'", "'gemma2-2b'")),
    (ROWS, "vanilla.reward_model", "standrd", "par/vanilla", (VANILLA, "'standrd'", "'standard'")),
    (ROWS, "vanilla.settings", "par_pp", "par/vanilla", (VANILLA, "settings is 'par_pp'", "'par_ppo'")),
    (ROWS, "vanilla.evaluation", "dialog", "par/vanilla", (VANILLA, "evaluation is 'dialog'", "'dialogue'")),
    (ROWS, "vanilla.optimiser", {"kind": "dpo"}, "par/vanilla", (VANILLA, "optimiser 'dpo'", "'supervised'")),
    (MODELS, "standard.data", "lenght", "par/vanilla", (STANDARD, "data is 'lenght'", "'length'")),
    (MODELS, "standard.references", "hackabilty", "par/par", (STANDARD, "references is 'hackabilty'")),
    (MODELS, "standard.data", "mathematics", "par/vanilla", (STANDARD, "pairs is 'preference'", "preference pairs")),
    ("rlmec/reward_models.yaml", "math.segmenter", {"kind": "gold"}, "rlmec/math-ppo-a2c",
     ("rlmec/reward_models.yaml:math: ", "segmenter.kind is 'gold'", "'testbed'")),
    (BACKBONES, "gemma2-2b.data", "ultrafedback", "par/vanilla", (BACKBONES, "data is 'ultrafedback'", "'ultraf")),
    (BACKBONES, "gemma2-2b.attention", "flash_attention_2", "par/vanilla", (BACKBONES, "precision: bf16")),
    (BACKBONES, "gemma2-2b.architecture.max_position_embeddings", 200, "par/vanilla",
     (f"{BACKBONES}:gemma2-2b: ", "max_position_embeddings is 200", "288 tokens")),
    (ROWS, "par.shaping", {"kind": "par", "references": 11}, "par/par",
     ("par/rows.yaml:par: component 'standard'", "11 reference rewards", "draws 10")),
    (ROWS, "par.shaping", {"kind": "outcome_probability"}, "par/par",
     ("par/rows.yaml:par: ", "must know if a response is a right solution", "rlmec")),
    (ROWS, "vanilla.lora", {"targets": ["q_proj", "v_prj"]}, "par/vanilla", (VANILLA, "'v_prj'", "'v_proj'?")),
    (ROWS, "vanilla.lora", {"targets": ["q_proj", "lm_head"]}, "par/vanilla", (VANILLA, "'lm_head'", "embedding")),
    (ROWS, "vanilla.optimiser", {"kind": "grpo"}, "par/vanilla", (ROWS, "group_size")),
    (POLICY, "par_grpo.sampling.temperature", 0, "par/grpo-par",
     (POLICY, "optimiser.group_size is 5", "sampling.temperature is 0")),
    (POLICY, "par_ppo.optimiser.importance_cap", 2.0, "par/par", (POLICY, "importance_cap is 2", "'loop'")),
    (STAGES, "references.responses", 2, "par/par", (ROWS, "draws 2")),
    (STAGES, "references.sampling.temperature", 0, "par/par", (STAGES, "responses is 10", "temperature is 0")),
    (STAGES, "pool.sampling.temperature", 0, "sentence/best-of-n-sentence", (STAGES, "samples is 32")),
    (STAGES, "pool.benchmarks", ["alpaca", "alpaca"], "sentence/best-of-n-sentence", (STAGES, "each once")),
    (STAGES, "best_of_n.sizes", [2, 64], "sentence/best-of-n-sentence", (STAGES, "sizes is [2, 64]", "32")),
    (STAGES, "selection.engine", "lop", "alarm/mt-t5-alarm", (STAGES, "engine is 'lop'", "did you mean 'loop'")),
    (EVALUATION, "dialogue.max_new_tokens", 400, "par/vanilla", (BACKBONES, "560 tokens")),
    ("sentence/rows_measuring.yaml", "second-judge.backbone", "phi3-mini", "sentence/second-judge",
     ("backbone is 'phi3-mini'", "'llama32-3b-sft'")),
    ("segment/rows.yaml", "segment.readout.segmenter.cutoff", "9", "segment/segment",
     ("segment/rows.yaml:segment: ", "'9'")),
    ("tatoeba/selections.yaml", "tools.backbone", "tatoeba", "tatoeba/tatoeba-alarm",
     ("selections.yaml:tools: ", "backbone is 'tatoeba'")),
    ("tatoeba/selections.yaml", "tools.holistic", "holistc", "tatoeba/tatoeba-alarm",
     ("selections.yaml:tools: ", "holistic is 'holistc'", "'holistic'")),
    ("alarm/selections.yaml", "qa.aspects", ["lengh"], "alarm/qa-alarm",
     ("selections.yaml:qa: ", "aspects[0] is 'lengh'", "'length'")),
    (MODELS, "hh-warm.merge", ["hh-warm-3e-6", "hh-wrm"], "par/hh-warm",
     ("reward_models.yaml:hh-warm: ", "merge[1] is 'hh-wrm'", "'hh-warm")),
    (MODELS, "standard.segmenter", {"kind": "sat", "model": "sat-2l"}, "par/vanilla", (MODELS, "'sat-2l'", "'sat-3l")),
    (EVALUATION, "dialogue.task_tokens", 400, "par/vanilla", (BACKBONES, "560 tokens")),
    *[
        (STAGES, place, 5000, row, ("backbones", "max_position_embeddings", place.split(".")[0]))
        for place, row in (
            ("samples.sampling.max_new_tokens", "rlmec/math-rft"),
            ("generative_reward_model.max_new_tokens", "rlmec/math-rlmec"),
        )
    ],
    (ROWS, "vanilla.lora", {"targets": ".*attention.*"}, "par/vanilla", (VANILLA, "lora.targets names")),
    (ROWS, "vanilla.lora", {"targets": []}, "par/vanilla", (VANILLA, "targets is empty")),
    (POLICY, "par_online_dpo.sampling.top_k", 1, "par/online-dpo-par", (POLICY, "sampling.top_k is 1")),
    (STAGES, "samples.sampling.temperature", 0, "rlmec/math-rlmec", (STAGES, "samples is 5")),
    (ROWS, "zz", {"kind": "second_judge", "backbone": "gemma2-2b", "policy": "par", "against": ["hh-vanilla"]},
     "par/zz", ("par/rows.yaml:zz: ", "compare policies on the same data")),
    (ROWS, "zz", {"kind": "reward_bench", "backbone": "phi3-mini", "reward_model": "standard"}, "par/zz",
     ("par/rows.yaml:zz: ", "name the same backbone")),
    ("rlmec/rows_zz.yaml", "zz",
     {"title": "zz", "kind": "supervised", "backbone": "rlmec-qa", "optimiser": {"kind": "dpo"}}, "rlmec/zz",
     ("rlmec/rows_zz.yaml:zz: optimiser is 'dpo', which needs preference pairs", "change optimiser")),
]  # fmt: skip

#: Numbers above what exists.
AMOUNTS: list[Case] = [
    (POLICY, "ppo.prompts", 99999, "segment/segment",
     (f"{POLICY}:ppo: prompts is 99999, but there are 4096 training prompts (", f"{DATA}:dialogue, rows.prompts",
      "set prompts to at most 4096")),
    (POLICY, "ppo.checkpoint_prompts", 5000, "segment/segment",
     ("checkpoint_prompts is 5000, but there are 512 prompts in the benchmark 'alpaca'",)),
    (EVALUATION, "dialogue.rows", 20, "segment/segment",
     ("there are 20 items of each benchmark (", f"{EVALUATION}:dialogue, rows)")),
    (POLICY, "ppo.checkpoints", 999, "segment/segment", ("checkpoints is 999, but there are",)),
    (POLICY, "ppo.checkpoint_every", 999, "segment/segment", ("checkpoint_every is 999, but there are",)),
    (STAGES, "references.prompts", 99999, "par/par", ("references: prompts is 99999, but there are",)),
    (STAGES, "normaliser.pairs", 99999, "segment/segment", ("99999, but there are 6000 training pairs",)),
    (STAGES, "pool.prompts", 99999, "sentence/best-of-n-response", ("prompts is 99999, but there are",)),
    (STAGES, "selection.prompts", 99999, "alarm/qa-alarm", ("prompts is 99999, but there are",)),
    (BACKBONES, "phi3-mini.examples", 99999, "segment/segment", ("examples is 99999, but there are",)),
    (EVALUATION, "dialogue.pair_rows", 99999, "segment/segment", ("pair_rows is 99999, but there are 512",)),
]  # fmt: skip
