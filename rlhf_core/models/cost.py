"""GPU hours of training without running it: floating-point operations over a GPU's speed.

A transformer of N parameters takes 2 N operations per token forward and 4 N more backward (Kaplan et al. 2020,
section 2.1; attention over the length is left out, a tenth at 2,000 tokens). Training t tokens is 6 N t, scoring them
2 N t. Generating them is 2 N t too, at a much smaller share of the peak, since it is bound by memory. What a GPU
reaches of its peak is assumed, below; real runs differ by a factor of about two.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Dense bf16 peak of an A100, operations per second (vendor's data sheet), which the published runs used.
PEAK = 312e12
#: Shares of the peak: training under ZeRO 3, scoring, and sampling in batches of tens.
TRAIN_SHARE, SCORE_SHARE, SAMPLE_SHARE = 0.35, 0.45, 0.05


@dataclass(frozen=True)
class Work:
    """Tokens times parameters of one stage.

    Attributes:
        trained, scored, sampled: sum over models of parameters x tokens.
    """

    trained: float = 0.0
    scored: float = 0.0
    sampled: float = 0.0

    def gpu_hours(self, peak: float = PEAK) -> float:
        """Returns hours of one GPU; over several, as many in all."""
        seconds = 6 * self.trained / TRAIN_SHARE + 2 * self.scored / SCORE_SHARE + 2 * self.sampled / SAMPLE_SHARE
        return seconds / peak / 3600


def supervised(parameters: int, rows: float, epochs: float, tokens: float) -> Work:
    """Returns the training on rows of a mean length, a validation pass left out."""
    return Work(trained=parameters * rows * epochs * tokens)


def policy_run(
    policy: int, critic: int, frozen: int, *, responses: float, epochs: float, prompt: float, response: float
) -> Work:
    """Returns the policy optimisation over a number of sampled responses.

    Args:
        policy, critic: trained parameters; 0 without a critic.
        frozen: parameters of the reference and the reward models together.
        responses: sampled in the whole run.
        epochs: passes over each.
        prompt, response: mean tokens.
    """
    tokens = responses * (prompt + response)
    return Work(
        trained=(policy + critic) * tokens * epochs,
        scored=(policy + critic + frozen) * tokens,
        sampled=policy * responses * response,
    )
