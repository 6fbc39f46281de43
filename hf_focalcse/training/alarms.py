"""What a run must say loudly: it is logged at once, and kept for run.json and the model card."""

from __future__ import annotations

import math

from transformers.utils import logging

from ..errors import UserError

logger = logging.get_logger(__name__)

COLLAPSED_COSINE = 0.98  # mean cosine of different sentences above which all vectors point in one direction


class Alarms(list[str]):
    """The alarms of a run, in the order in which they were raised."""

    def __init__(self) -> None:
        super().__init__()
        self._collapsed_before = self._alone_before = False

    def add(self, message: str) -> None:
        """Log an alarm and keep it."""
        self.append(message)
        logger.warning("ALARM: %s", message)

    def watch(self, logs: dict[str, float], step: int) -> None:
        """Raise an alarm where a log line shows that the run collapses or learns nothing.

        Raises:
            UserError: the loss is NaN or infinite.
        """
        if not math.isfinite(logs["loss"]):
            raise UserError(
                f"the loss is {logs['loss']} at step {step}; lower --learning_rate, raise --temperature, or use "
                "--bf16 in place of --fp16"
            )
        collapsed = logs.get("negative_cosine_mean", 0.0) > COLLAPSED_COSINE
        if collapsed and self._collapsed_before:
            self.add(
                f"collapse at step {step}: the mean cosine of different sentences is "
                f"{logs['negative_cosine_mean']:.3f}; the loss is {logs['loss']:.2f}, {logs['loss_if_collapsed']:.2f} "
                "would be a full collapse; lower --learning_rate or raise --dropout"
            )
        self._collapsed_before = collapsed
        if logs.get("negatives_per_anchor_mean") == 0 and not self._alone_before:
            self._alone_before = True
            self.add(
                f"step {step}: no sentence of the batch has a negative, since all texts are equal; nothing is learnt "
                "from it"
            )
