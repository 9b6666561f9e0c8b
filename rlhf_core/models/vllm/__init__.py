"""vLLM as a rollout engine: a process and an environment of its own, which the trainer hands its weights.

`server` is the only module that imports vLLM. It runs in vLLM's environment, as do `messages` and `choosing`, which
import neither transformers nor anything else of the library.
"""
