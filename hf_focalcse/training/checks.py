"""What a trainer is given, checked before anything is made of it."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import DynamoBackend
from torch.utils.data import IterableDataset
from transformers.utils import logging

from ..data.views import View
from ..errors import UserError
from ..losses import ContrastiveLoss
from ..objectives import Contrastive, Objective
from .given import pair_columns_of, take_loss, take_reference

HALVES = (torch.float16, torch.bfloat16)
logger = logging.get_logger(__name__)


def choose_objective(
    objective: Objective | None,
    loss: ContrastiveLoss | str | None,
    mask_duplicates: bool | None,
    reference: Any,
    negatives: str,
    max_seq_length: int,
    data: Any = None,
) -> Objective:
    """The objective that is given, or the contrastive one of a loss, by default focal; over the columns of pairs where
    the training data have them under their usual names.

    Raises:
        UserError: both are given, or as for `take_loss` and `take_reference`.
    """
    if objective is None:
        frozen = take_reference(reference)
        columns = pair_columns_of(data)
        views: Any = 2 if columns is None else [View(columns=(column,)) for column in columns]
        return Contrastive(take_loss(loss), mask_duplicates, frozen, negatives, max_seq_length, views=views)
    if not isinstance(objective, Objective):
        raise UserError(f"objective is {type(objective).__name__}; give an Objective, or the loss as loss=…")
    given = {"loss": loss, "mask_duplicates": mask_duplicates, "reference": reference}
    unused = [name for name, value in given.items() if value is not None] + ["negatives"] * (negatives != "global")
    if unused:
        names = ", ".join(unused)
        raise UserError(f"{names} cannot be given together with an objective, which replaces them; leave {names} out")
    return objective


def check_model(model: Any, args: Any, comparing: bool = True) -> None:
    """See that the encoder can be trained with these arguments, and log the dropout that makes two views differ.

    comparing: whether sentences are compared, which needs views that differ and negatives.

    Raises:
        UserError: the views would be equal, activations cannot be recomputed, one process sees several GPUs, or a
            batch has no negatives.
    """
    halves = sorted({str(p.dtype) for p in model.parameters() if p.requires_grad and p.dtype in HALVES})
    if halves:
        raise UserError(
            f"the weights of the encoder are {', '.join(halves)}, in which small updates are lost; load it in "
            "float32, as load_model does, and compute in half precision with bf16 or fp16 of the arguments"
        )
    rates = model.dropout_rates()
    logger.info("dropout of the encoder: %s", ", ".join(f"{k}={v}" for k, v in rates.items()))
    noisy = model.lora is not None and model.lora.dropout > 0
    if comparing and not any(rates.values()) and not model.augmented and not noisy:
        raise UserError(
            f"every dropout rate of this {model.config.model_type} encoder is 0 ({', '.join(rates)}), so both views "
            "of a sentence would be equal and nothing could be learnt; give --dropout 0.1, or an --augmentation "
            "such as token_shuffle"
        )
    if args.neftune_noise_alpha is not None:
        model.packing = False  # the noise is scaled by the length of a row, which must be a sentence
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
    if comparing and args.per_device_train_batch_size < 2:
        raise UserError(
            f"per_device_train_batch_size is {args.per_device_train_batch_size}; a sentence needs at least one other "
            "in its batch as a negative, so give 2 or more (64 is usual)"
        )


def check_lora(model: Any, engine: str) -> None:
    """See that an encoder that is trained by LoRA runs in an engine that saves its adapter.

    Raises:
        UserError: the engine shards the model.
    """
    if model.lora is not None and engine not in ("one process", "DDP"):
        raise UserError(
            f"--lora does not go with {engine}, which shards the weights that LoRA keeps as they are; start the "
            "processes without it (torchrun alone trains by DDP), or leave --lora out"
        )


def check_compiled(model: Any, accelerator: Any) -> None:
    """Tell an encoder whether torch.compile has it: by --torch_compile or accelerate launch --dynamo_backend.

    Raises:
        UserError: it has a cutoff.
    """
    model.compiling = accelerator.state.dynamo_plugin.backend != DynamoBackend.NO
    if model.compiling and model.cut:
        raise UserError(
            "--torch_compile does not go with a cutoff, which reaches into the compiled encoder; leave one of the "
            "two out, or use --augmentation token_shuffle"
        )


def check_measuring(steps: int, data: Any, labelled: list[Any]) -> None:
    """See that there is a fixed sample to measure.

    Raises:
        UserError: without labelled pairs it is one of the training text, and this is a stream.
    """
    if not labelled and isinstance(data, IterableDataset):
        raise UserError(
            f"measure_steps is {steps}, but there is no fixed sample to measure: the training data are a stream; give "
            "labelled pairs as eval_dataset, or leave measure_steps out"
        )


def check_optimizers(optimizers: Any, by_class: Any, model: Any, model_init: Any) -> tuple[Any, Any]:
    """What a script gives as ``optimizers``: an optimizer and a scheduler, each of which may be None.

    Raises:
        UserError: they are something else, belong to another model, or cannot go with what else was given.
    """
    if not isinstance(optimizers, (tuple, list)) or len(optimizers) != 2:
        raise UserError(f"optimizers is {type(optimizers).__name__}; give the two as (optimizer, scheduler), or None")
    optimizer, scheduler = optimizers
    if optimizer is not None and by_class is not None:
        raise UserError("optimizers and optimizer_cls_and_kwargs both name an optimizer; leave one out")
    if model_init is not None and (optimizer, scheduler) != (None, None):
        raise UserError(
            "optimizers cannot be given together with model_init, which makes an encoder that they do not know; give "
            "optimizer_cls_and_kwargs, or optim and lr_scheduler_type in the arguments"
        )
    if optimizer is not None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if held.isdisjoint(map(id, model.parameters())):
            raise UserError(
                "the optimizer holds no parameter of the encoder, so nothing would be trained; make it with "
                "model.parameters() of the encoder that the trainer is given"
            )
    return optimizer, scheduler
