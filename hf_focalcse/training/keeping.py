"""A Trainer whose checkpoints appear whole or not at all, are checked before they are used, and hold the objective."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.serialization import register_package
from transformers import TrainerState
from transformers.utils import logging

from ..compat import kept_out_of_files, loss_since_log, save_unpublished
from ..encoder.adapters import ADAPTER_FOLDER, CONFIG_FILE
from ..encoder.loading import load_model
from ..encoder.lora import read_adapter_weights, write_adapter
from ..errors import UserError
from ..objectives import Objective
from ..publishing.formats import write_sentence_transformers
from ..runs.atomic import clear_drafts, failed_writes
from ..runs.folder import WEIGHTS_FILE
from ..runs.locking import locked
from . import checkpoints
from .alarms import Alarms
from .checkpoints import Checkpoint, find_checkpoint
from .engines import whole_model
from .refusing import RefusingTrainer

logger = logging.get_logger(__name__)

WRITE_ERRORS = ("inline_container", "PytorchStreamWriter", "basic_ios::clear")  # torch.save's on a full disk
OBJECTIVE_FILE = "objective-{}.safetensors"  # of a rank

# Trainer maps the optimizer's state to its own device, which among several processes without a GPU is "cpu:0". torch
# restores only to "cpu" (transformers before 5.18 asks for the other all the same).
register_package(11, lambda storage: None, lambda storage, place: storage if place.startswith("cpu:") else None)


def write_modules(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write beside saved weights what lets SentenceTransformer open the folder with the vectors that `encode` gives.

    Nothing is written where the weights lie in the shards of an engine, which that library cannot read, nor of an
    encoder with a template, which it cannot fill.
    """
    if not (folder / WEIGHTS_FILE).is_file() or model.template is not None:
        return
    limit = int(min(model.positions, tokenizer.model_max_length))
    if model.projection_use == "always" or model.tail.state_dict():
        # They are written once more, from the file: an engine may hold them in shards.
        with whole_model(), torch.random.fork_rng(devices=[]):  # a resumed run draws as the uninterrupted one
            model = load_model(str(folder))
    write_sentence_transformers(model, folder, limit)


class KeepingTrainer(RefusingTrainer):
    """What `FocalCSETrainer` does about checkpoints."""

    train_objective: Objective
    alarms: Alarms
    allow_resume_mismatch: bool
    args: Any
    _staging = False
    clear_output: Callable[[], None] | None = None  # removes what the output folder holds of an earlier run
    resumed_from: Path | None = None  # the checkpoint that the run, or its newest part, started from
    loss_before: Any = None  # the sum of losses since the last log line before that checkpoint, and that line's step
    seconds_before: float | None = 0.0  # of the run before the checkpoint that it was resumed from; None: not known

    @property
    def encoder(self) -> Any:
        """The encoder that is trained, out of the wrappers of engine and compiler."""
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    @property
    def seconds(self) -> float:
        raise NotImplementedError

    def run_identity(self) -> dict[str, Any]:
        raise NotImplementedError

    # ---- writing

    @contextmanager
    def hold_output(self) -> Iterator[None]:
        """Within it no other run can write into the output folder; the first process holds it for all.

        Raises:
            UserError: another run does.
        """
        if self.args.process_index > 0:
            yield
            return
        with locked(str(self.args.output_dir)):
            clear_drafts(Path(str(self.args.output_dir)))
            yield

    def make_way(self) -> None:
        """Remove an earlier run, once, when there is something whole to take its place."""
        if self.clear_output is not None and self.args.should_save:
            self.clear_output()
        self.clear_output = None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Trainer's, with the files that SentenceTransformer reads. Of an encoder that is trained by LoRA a checkpoint
        gets the adapter alone, and any other folder the merged encoder and the adapter in a folder of its own."""
        folder = Path(output_dir or str(self.args.output_dir))
        if self.encoder.lora is None or not self._staging:
            super().save_model(output_dir, _internal_call=True)
        if self.args.should_save and self.encoder.lora is not None:
            write_adapter(self.encoder, folder if self._staging else folder / ADAPTER_FOLDER, self.processing_class)
        if self.args.should_save and not (folder / CONFIG_FILE).is_file():
            write_modules(self.encoder, self.processing_class, folder)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _get_output_dir(self, trial: Any) -> str:
        """While a checkpoint is written: the place from which it is moved when it is whole."""
        folder = super()._get_output_dir(trial)
        return str(checkpoints.stage(folder)) if self._staging else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A checkpoint appears whole or not at all; the best and the last are never deleted."""
        folder = Path(super()._get_output_dir(trial))  # of a run of a hyperparameter search: one below output_dir
        name = f"checkpoint-{self.state.global_step}"
        staged = checkpoints.stage(folder) / name
        best_before = self.state.best_model_checkpoint
        self._staging = True
        try:
            with failed_writes():
                super()._save_checkpoint(model, trial)
            self._save_objective(staged)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise self._saving_failed(error) from error
        finally:
            self._staging = False
        self.state.best_model_checkpoint = (
            str(folder / name) if self.state.best_global_step == self.state.global_step else best_before
        )
        total, since = loss_since_log(self)
        total = self.accelerator.gather(total.reshape(1)).mean().item()
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            try:
                (staged / "training_args.bin").unlink(missing_ok=True)  # a pickle; run.json says the same
                self.state.save_to_json(str(staged / "trainer_state.json"))  # with the best one's final place
                run = self.run_identity() | {
                    "seconds": round(self.seconds, 1),
                    "alarms": self.alarms.kept(),
                    "loss_since_log": [total, since],
                }
                self.make_way()
                checkpoints.publish(staged, folder / name, run, not self.args.save_only_model)
                checkpoints.rotate(folder, self.args.save_total_limit, self.state.best_model_checkpoint)
            except OSError as error:
                raise self._saving_failed(error) from error
        self.accelerator.wait_for_everyone()

    def save_whole(self, folder: Path) -> None:
        """The model for its users, written beside and then moved file by file, so that none is half written."""
        stage = checkpoints.stage(folder) / "model"
        try:
            with failed_writes():
                save_unpublished(self, stage)  # else it would push before run.json is there
            if self.args.should_save:
                (stage / "training_args.bin").unlink(missing_ok=True)  # a pickle; run.json says the same
                self.make_way()
                checkpoints.publish_files(stage, folder)
                checkpoints.clear_stage(folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise self._saving_failed(error) from error

    def _saving_failed(self, error: Exception) -> Exception:
        """A UserError for a failed write, the error itself for anything else."""
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in WRITE_ERRORS):
            return error
        return checkpoints.saving_failed(error, self.args.output_dir)

    # ---- resuming

    def choose_checkpoint(self, asked: str) -> str | None:
        """Rank 0 looks for the checkpoint to resume from, and all ranks get its answer.

        Raises:
            UserError: no such checkpoint, a damaged one, or one of another run.
        """
        answer: list[Any] = [None, None]  # what is wrong, the checkpoint
        if self.args.process_index == 0:
            try:
                answer[1] = find_checkpoint(self.args.output_dir, asked)
            except UserError as error:
                answer[0] = str(error)
        if self.args.world_size > 1:
            broadcast_object_list(answer)
        problem, checkpoint = answer
        if problem:
            raise UserError(problem)
        if checkpoint is None:
            self.alarms.add(
                f"there is no checkpoint in {self.args.output_dir} yet: training starts from the beginning"
            )
            return None
        self.alarms.restore(checkpoint.run.get("alarms", {}))
        for note in checkpoint.notes:
            self.alarms.add(note)
        self._require_same_run(checkpoint)
        self.seconds_before = checkpoint.run.get("seconds")
        self.loss_before = checkpoint.run.get("loss_since_log")
        self.resumed_from = Path(checkpoint.path)
        logger.warning("resuming from %s", checkpoint.path)
        return str(checkpoint.path)

    def rebase_best(self) -> None:
        """Find the best checkpoint of a resumed run by its name: its folder may have been moved, or recorded as seen
        from another working directory. Called when the state of the checkpoint is read.
        """
        if self.resumed_from is None:
            return
        state = TrainerState.load_from_json(str(self.resumed_from / "trainer_state.json"))
        if state.best_model_checkpoint is None:
            return
        name = re.split(r"[/\\]", state.best_model_checkpoint)[-1]
        places = [Path(str(self.args.output_dir)) / name, self.resumed_from.parent / name]
        found = next((place for place in places if checkpoints.damage(place, whole=False) is None), None)
        self.state.best_model_checkpoint = None if found is None else str(found)
        if found is None:
            self.alarms.add(
                f"the best checkpoint before resuming ({name}, {self.args.metric_for_best_model} "
                f"{self.state.best_metric}) is not there any more: the best of those that follow is kept"
            )
            self.state.best_metric = self.state.best_global_step = None

    def _require_same_run(self, checkpoint: Checkpoint) -> None:
        differences = checkpoints.differences_of_run(checkpoint, self.run_identity())
        if differences and not self.allow_resume_mismatch:
            raise UserError(
                f"{checkpoint.path} is of another run: {'; '.join(differences)}; use the settings of the checkpoint, "
                "or resume despite the differences with --allow_resume_mismatch"
            )
        if differences:
            self.alarms.add(f"resumed from {checkpoint.path}, which is of another run: {'; '.join(differences)}")

    # ---- the objective; FSDP2 and ZeRO keep the parameters of the whole model, the objective's among them

    @property
    def _sharded(self) -> bool:
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def _save_objective(self, folder: Path) -> None:
        """Each rank writes what its objective keeps; what is equal on all ranks, only the first.

        A checkpoint that no run can be resumed from (--save_only_model) holds nothing of the objective.
        """
        if self.args.save_only_model:
            return
        skipped = {name for name, _ in self.train_objective.named_parameters()} if self._sharded else set()
        skipped |= self.train_objective.shared() if self.args.process_index else set()
        kept = {name: value.cpu() for name, value in self.train_objective.kept().items() if name not in skipped}
        if kept:
            save_file(
                {name: value.contiguous().clone() for name, value in kept.items()},
                folder / OBJECTIVE_FILE.format(self.args.process_index),
                metadata={"format": "pt"},
            )

    def restore_objective(self) -> None:
        """Give the objective back what the checkpoint keeps of it. Called when the engine has wrapped the model, since
        DDP hands the buffers of the first rank to all others then.

        Raises:
            UserError: the checkpoint lacks something that the objective keeps.
        """
        if self.resumed_from is None or not self.train_objective.has_state():
            return
        files = [self.resumed_from / OBJECTIVE_FILE.format(rank) for rank in (0, self.args.process_index)]
        found: dict[str, Tensor] = {}
        for file in files:
            found |= load_file(file) if file.is_file() else {}
        if missing := self._objective_names() - found.keys():
            raise UserError(
                f"checkpoint {self.resumed_from} lacks {len(missing)} tensors of the objective "
                f"{type(self.train_objective).__name__}, such as {min(missing)}; it is of another objective: give the "
                "same, or start again with --overwrite_output_dir"
            )
        self.train_objective.restore(found)

    def _objective_names(self) -> set[str]:
        """What the side files of a checkpoint must hold."""
        names = set(self.train_objective.kept())
        return names - {name for name, _ in self.train_objective.named_parameters()} if self._sharded else names

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """In the place of Trainer's, which loads leniently: weights that are missing or too many are those of another
        encoder. Nothing is tied anew, since loading into the tensors in place leaves what is tied so.

        Raises:
            UserError: there are such weights.
        """
        elsewhere = kept_out_of_files(self.encoder)  # in files of their own, or tied to others
        apart = [key for key in load_result.missing_keys if key not in elsewhere and not key.startswith("objective.")]
        for what, names in (("lacks", apart), ("has beside its own", list(load_result.unexpected_keys))):
            if names:
                raise UserError(
                    f"the checkpoint that is loaded {what} {len(names)} weights of {type(self.encoder).__name__}, "
                    f"such as {min(names)!r}: it is of another encoder or damaged; train with the encoder that it "
                    "was made of, or start again with --overwrite_output_dir"
                )

    # ---- encoders whose projection lies in a side file; FSDP2 and ZeRO keep it with the rest

    def _load_best_model(self) -> None:
        if self.encoder.lora is not None:
            read_adapter_weights(self.encoder, str(self.state.best_model_checkpoint))
            return
        super()._load_best_model()
        if not self._sharded:
            self.encoder.load_head(self.state.best_model_checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.encoder.lora is not None:
            read_adapter_weights(self.encoder, resume_from_checkpoint)
            return
        if (Path(resume_from_checkpoint) / CONFIG_FILE).is_file():
            raise UserError(f"checkpoint {resume_from_checkpoint} holds an adapter; resume it with --lora")
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if not self._sharded:
            self.accelerator.unwrap_model(model or self.model).load_head(resume_from_checkpoint)
