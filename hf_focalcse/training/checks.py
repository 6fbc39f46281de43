"""What a trainer is given, checked before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging

from ..errors import UserError
from ..losses import ContrastiveLoss
from ..objectives import Contrastive, Objective

logger = logging.get_logger(__name__)


def choose_objective(
    objective: Objective | None,
    loss: ContrastiveLoss | None,
    mask_duplicates: bool | None,
    reference: Any,
    negatives: str,
    max_seq_length: int,
) -> Objective:
    """The objective that is given, or the contrastive one of a loss.

    Raises:
        UserError: both are given, or neither is.
    """
    if objective is None:
        if loss is None:
            raise UserError("nothing says what to train by: give loss=build_loss('focal'), or an objective")
        return Contrastive(loss, mask_duplicates, reference, negatives, max_seq_length)
    given = {"loss": loss, "mask_duplicates": mask_duplicates, "reference": reference}
    unused = [name for name, value in given.items() if value is not None] + ["negatives"] * (negatives != "global")
    if unused:
        names = ", ".join(unused)
        raise UserError(f"{names} cannot be given together with an objective, which replaces them; leave {names} out")
    return objective


def check_model(model: Any, args: Any) -> None:
    """See that the encoder can be trained with these arguments, and log the dropout that makes two views differ.

    Raises:
        UserError: the views would be equal, activations cannot be recomputed, one process sees several GPUs, or a
            batch has no negatives.
    """
    rates = model.dropout_rates()
    logger.info("dropout of the encoder: %s", ", ".join(f"{k}={v}" for k, v in rates.items()))
    if not any(rates.values()) and not model.augmented:
        raise UserError(
            f"every dropout rate of this {model.config.model_type} encoder is 0 ({', '.join(rates)}), so both views "
            "of a sentence would be equal and nothing could be learnt; give --dropout 0.1, or an --augmentation "
            "such as token_shuffle"
        )
    model.recomputing = args.gradient_checkpointing or getattr(args, "activation_checkpointing", False)
    if model.recomputing and not model.supports_gradient_checkpointing:
        raise UserError(
            f"--activation_checkpointing: {model.config.model_type} does not support activation checkpointing; use "
            "--chunk_size 64, which takes as little memory and gives the same gradient"
        )
    if args.n_gpu > 1:
        raise UserError(
            f"{args.n_gpu} GPUs are visible to one process, which would split every batch between them; start with "
            f"torchrun --nproc_per_node {args.n_gpu} run_unsup.py …, or set CUDA_VISIBLE_DEVICES=0 to use one"
        )
    if args.per_device_train_batch_size < 2:
        raise UserError(
            f"per_device_train_batch_size is {args.per_device_train_batch_size}; a sentence needs at least one other "
            "in its batch as a negative, so give 2 or more (64 is usual)"
        )


def word(choice: Any) -> str:
    """An enum of transformers as a command line gives it."""
    return str(getattr(choice, "value", choice))


@contextmanager
def refused_as(flag: str, remedy: str) -> Iterator[None]:
    """What transformers and torch refuse within it is a mistake in ``flag``."""
    try:
        yield
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{flag} cannot be used: {' '.join(str(error).split())}; {remedy}") from error
