"""A Trainer that knows how large its steps and its encoder are: sentences, views, parameters, memory."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from ..encoder.lora import adapter_parameters
from . import checkpoints
from .memory import StepMemory, estimate_step, step_ran_out
from .refusing import word
from .search import SearchingTrainer


class SizedTrainer(SearchingTrainer):
    """What `FocalCSETrainer` knows of the size of its steps."""

    collate_views: Any
    loss: Any
    max_seq_length: int
    carried: bool

    @property
    def views(self) -> int:
        """V, of the batches that the collator makes."""
        return self.collate_views.views

    @property
    def sentences_a_step(self) -> int:
        """That all processes train on in one step of the optimizer."""
        args = self.args
        return int(args.train_batch_size * args.world_size * args.gradient_accumulation_steps)

    @cached_property
    def step_memory(self) -> StepMemory:
        """What a step will take, see `estimate_step`; ask before `train`, which may shard the model."""
        template = self.encoder.template
        return estimate_step(
            self.encoder,
            self.loss,
            self.args.train_batch_size,
            self.max_seq_length + (template.tokens(self.encoder.tokenizer) if template else 0),
            optimizer=word(self.args.optim),
            world_size=self.args.world_size if self.train_objective.negatives == "global" else 1,
            views=self.views,
            autocast=self.accelerator.autocast,
            **self.train_objective.memory(),
        )

    def step_ran_out(self) -> str:
        """What to say and try when a step runs out of memory."""
        rows = self.args.train_batch_size * self.views
        said = step_ran_out(rows, self.views, self.max_seq_length, self.encoder.chunk_size)
        kept = checkpoints.list_checkpoints(Path(str(self.args.output_dir)))
        if not kept:
            return said
        return f"{said}; {kept[-1].name} is kept: add --resume_from_checkpoint last --allow_resume_mismatch"

    def parameters_of_encoder(self) -> int:
        """Their number, without those of the objective, which is not published, and of an adapter, which is merged."""
        total = sum(p.numel() for p in self.encoder.parameters()) - adapter_parameters(self.encoder)
        return total - sum(p.numel() for p in self.train_objective.parameters()) * self.carried
