"""Token rewards that were computed before training, looked up by sample. Source: RLMEC, Eq. 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.errors import DataError
from rlhf_core.lazy import torch
from rlhf_core.rollout import RolloutBatch
from rlhf_core.signals import Tokens


@dataclass(frozen=True)
class GivenTokenRewards:
    """Scores fixed samples by rewards given for each of their tokens.

    Args:
        rewards: by the id of a batch's record; one per response token, EOS included.
    """

    rewards: Mapping[str, Sequence[float]]

    @property
    def gives(self) -> type[Tokens]:
        return Tokens

    def score(self, batch: RolloutBatch) -> Tokens:
        """Returns [batch, response_len] float32.

        Raises:
            DataError: a response without rewards, or with another number of them than it has tokens.
        """
        mask = batch.responses.mask
        values = torch.zeros(mask.shape)
        for row, (record, length) in enumerate(zip(batch.records, mask.sum(dim=1).tolist(), strict=True)):
            given = self.rewards.get(str(record.get("id")))
            if given is None or len(given) != length:
                raise DataError(
                    f"sample '{record.get('id')}' has {length} tokens and {0 if given is None else len(given)} rewards",
                    field="rewards",
                    remedy="Score the samples that the policy trains on",
                )
            values[row, :length] = torch.tensor(list(given), dtype=torch.float32)
        return Tokens(values.to(mask.device))
