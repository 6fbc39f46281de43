"""What a training step takes in memory: the estimate before the first step, and what to say when memory runs out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.autograd.graph import saved_tensors_hooks

from ..encoder.poolers import pooler_of
from ..errors import UserError
from ..losses.base import ContrastiveLoss

OPTIMIZER_STATES = {"sgd": 0, "adafactor": 0, "8bit": 2, "4bit": 1}  # bytes a parameter, by a part of --optim
ADAM_STATES = 8
IN_HAND = 2  # factor on a layer's activations: backward also holds their gradients and intermediate results
LOSS_MATRICES = 10  # as large as a block of cosines that a loss holds at its peak, in float32
GUESSES = 3  # numbers for a token of the vocabulary: logits, their softmax and their gradient, in float32
FIRST_STEP = 100_000_000  # bytes that the libraries take in their first step whatever its size
USUAL_CHUNK = 64
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "ALLOC_FAILED")


@dataclass(frozen=True)
class StepMemory:
    """Bytes that one step of one process takes, where every text has ``length`` tokens.

    rows: sentences x views; group: how many of them go through the encoder together where no chunk size is set.
    weights: there before the step. row: activations that one row keeps for backward; layer: those of one layer.
    once: what is kept whatever the number of rows, such as autocast's copies of the weights.
    widest: the largest gradient of one tensor, which is there twice while it is added up. loss: of all rows.
    available: bytes free before the step, gradients and optimizer not yet taken.
    """

    rows: int
    group: int
    length: int
    chunk_size: int | None
    weights: int
    gradients: int
    optimizer: int
    row: int
    layer: int
    once: int
    widest: int
    loss: int
    available: int

    @property
    def activations(self) -> int:
        """What waits for backward, and what backward has in hand in the layer where it is."""
        waiting = min(self.chunk_size or self.rows, self.rows)
        at_once = min(self.chunk_size or self.group, self.rows)
        return self.once + self.row * waiting + IN_HAND * self.layer * at_once

    @property
    def needed(self) -> int:
        """Beside the weights. Loss and activations of the last chunk are not there at once, but their sum is near."""
        return self.gradients + self.widest + self.optimizer + self.activations + self.loss + FIRST_STEP

    @property
    def fits(self) -> bool:
        return self.needed <= self.available

    def fitting(self) -> StepMemory | None:
        """This step with the largest ``chunk_size`` of 1, 2, 4, … that fits, or None."""
        size = smaller_chunk(self.rows, self.chunk_size)
        while size and not replace(self, chunk_size=size).fits:
            size //= 2
        return replace(self, chunk_size=size) if size else None

    def to_dict(self) -> dict[str, Any]:
        """For run.json."""
        return asdict(self) | {"activations": self.activations, "needed": self.needed}

    def __str__(self) -> str:
        parts = {"activations": self.activations, "gradients": self.gradients + self.widest}
        parts |= {"optimizer": self.optimizer, "loss": self.loss, "libraries": FIRST_STEP}
        said = (
            f"Memory of a step: at most about {gb(self.needed)} GB beside the weights, at {self.length} tokens a "
            f"sentence ({', '.join(f'{name} {gb(size)}' for name, size in parts.items())}); "
            f"{gb(self.available)} GB are free"
        )
        if self.fits:
            return said
        other = self.fitting()
        if other is None:
            return f"{said}\nWARNING: it will not fit with any --chunk_size: lower --per_device_train_batch_size"
        return (
            f"{said}\nWARNING: it will not fit: try --chunk_size {other.chunk_size}, about {gb(other.needed)} GB and "
            "the same gradient"
        )


def estimate_step(
    model: Any, loss: ContrastiveLoss | None, batch: int, length: int, optimizer: str = "adamw", world_size: int = 1,
    views: int = 2, autocast: Any = None, passes: int = 1, frozen: int = 0,
    guesses: float = 0.0,
) -> StepMemory:  # fmt: skip
    """The memory of a step over ``batch`` sentences a process, with all ``world_size`` processes' views as candidates.

    Activations are those that one sentence of full length keeps here and now. FSDP2 and ZeRO share out weights,
    gradients and optimizer, and take less. autocast: makes the context that the forward pass runs in.
    passes: through networks of this size, for a row. frozen: bytes of the weights beside the model. guesses: the share
    of a row's tokens that are guessed out of the vocabulary.
    """
    trained = [p.numel() for p in model.parameters() if p.requires_grad]
    width = next((size for part, size in OPTIMIZER_STATES.items() if part in optimizer), ADAM_STATES)
    device = next(model.parameters()).device
    candidates = batch * world_size * (views - 1)
    cells = 0 if loss is None else loss.cells(batch, candidates, device)
    vectors = 4 * (batch + candidates) * model.config.hidden_size  # given, of length 1, and the gradients of both
    row, layer, once = kept_for_backward(model, views, length, autocast)
    row = row * passes + int(4 * GUESSES * guesses * length * model.config.vocab_size)
    return StepMemory(
        rows=batch * views,
        group=model.rows_per_group(batch * views),
        length=length,
        chunk_size=model.chunk_size,
        weights=sum(p.numel() * p.element_size() for p in model.parameters()) + frozen,
        gradients=4 * sum(trained),
        optimizer=width * sum(trained),
        row=row,
        layer=layer,
        once=once,
        widest=4 * max(trained),
        loss=4 * (LOSS_MATRICES * cells + vectors),
        available=available_memory(device),
    )


def kept_for_backward(model: Any, views: int, length: int, autocast: Any = None) -> tuple[int, int, int]:
    """Bytes that a row of ``length`` tokens takes until backward, weights not counted; of them those of one layer;
    and what is taken once for all rows.

    Where layers are run again in backward: what comes into each of them, and all that one of them keeps.
    """

    def per_row() -> tuple[int, int]:
        one, two = (kept_by_forward(model, sentences, views, length, autocast) for sentences in (1, 2))
        return (two - one) // views, max(2 * one - two, 0)

    row, once = per_row()
    layer = row // model.config.num_hidden_layers
    if not model.recomputing:
        return row, layer, once
    with layers_run_again(model):
        return per_row()[0] + layer, layer, once


@contextmanager
def layers_run_again(model: Any) -> Iterator[None]:
    """Activation checkpointing as Trainer is going to switch it on, within this."""
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # the older name
    getattr(model, f"{name}_checkpointing_enable")()
    try:
        yield
    finally:
        getattr(model, f"{name}_checkpointing_disable")()


def kept_by_forward(model: Any, sentences: int, views: int, length: int, autocast: Any = None) -> int:
    """Bytes that a forward pass over sentences of ``length`` tokens keeps, weights not counted."""
    device = next(model.parameters()).device
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    token = ((model.config.pad_token_id or 0) + 1) % model.config.vocab_size
    token = model.tokenizer.mask_token_id if pooler_of(model.pooler_name).marked else token
    ids = torch.full((sentences, views, length), token, device=device)
    was_training, chunk_size = model.training, model.chunk_size
    model.train()
    model.chunk_size = None
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),  # the run draws as if this had not been
            nullcontext() if autocast is None else autocast(),
            saved_tensors_hooks(note, lambda tensor: tensor),
        ):
            vectors = model(ids, torch.ones_like(ids))  # held while the storages are counted
    finally:
        model.train(was_training)
        model.chunk_size = chunk_size
    del vectors
    return sum(kept.values())


def available_memory(device: torch.device) -> int:
    """Bytes that this process can still take: of the GPU, or of main memory within the limits set for it."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return min([psutil.virtual_memory().available // neighbours, *address_space(), *control_group()])


def address_space() -> list[int]:
    """What ``ulimit -v`` leaves."""
    try:
        import resource
    except ImportError:  # Windows
        return []
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return [] if limit == resource.RLIM_INFINITY else [limit - psutil.Process().memory_info().vms]


def control_group(folder: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """What a container's limit leaves (cgroup v2); what is only cached from files can be taken."""
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, KeyError, ValueError):
        return []
    return [] if limit == "max" else [int(limit) - int(used) + int(cached)]


# ---- when memory runs out


@contextmanager
def refusing_out_of_memory(say: Callable[[], str]) -> Iterator[None]:
    """Within it, running out of memory is a UserError with the sentence that ``say`` makes."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(say()) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU, torch's allocator or Python had no memory left."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(w in str(error) for w in OUT_OF_MEMORY)


def step_ran_out(rows: int, views: int, length: int, chunk_size: int | None) -> str:
    """What to say and try when a step over ``rows`` rows runs out of memory."""
    size = smaller_chunk(rows, chunk_size)
    fewer = "a smaller --per_device_train_batch_size (fewer negatives)"
    try_this = f"--chunk_size {size} (the same gradient in less memory)" if size else fewer
    return (
        f"out of memory in a step of {rows // views} sentences x {views} views of up to {length} tokens, "
        f"{'all at once' if chunk_size is None else f'--chunk_size {chunk_size}'}; try {try_this}"
        + (f", or {fewer}" if size and chunk_size else "")
    )


def smaller_chunk(rows: int, chunk_size: int | None) -> int | None:
    """The power of two below what is computed at a time, 64 at first; None where that is one row."""
    now = min(chunk_size or rows, rows)
    if now <= 1:
        return None
    below = 1 << (now - 1).bit_length() - 1
    return min(below, USUAL_CHUNK)


def gb(size: float) -> str:
    return f"{size / 1e9:.2f}"
