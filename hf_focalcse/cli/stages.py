"""A recipe with stages: each is a run of its own, which starts from the encoder of the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..parsing.recipes import stages_of
from ..parsing.settings import Settings
from ..runs.record import RUN_FILE, RunRecord
from ..training import checkpoints

STAGES = "stages"  # the folder in --output_dir that holds all but the last
RESUME = "--resume_from_checkpoint"
COMPARED = ("learning_rate", "max_steps", "num_train_epochs", "per_device_train_batch_size", "seed")
APART = ("stage", "recipe", "overwrite_output_dir", "allow_resume_mismatch", "model_name_or_path")  # tell no two apart


def stages_in(settings: Settings) -> list[str]:
    """The names of the stages that these settings ask for; none where they are one run."""
    return [] if settings.job.stage is not None else list(stages_of(settings.recipe))


def run_stages(settings: Settings, run: Callable[..., None]) -> None:
    """Every stage in order, the last one in ``--output_dir``, those before in its folder ``stages``.

    With ``--resume_from_checkpoint last`` stages that are finished are passed over, and the one that was interrupted
    goes on. run: of one stage; the keyword ``goes_on`` says that another follows in this process.

    Raises:
        UserError: a stage's settings are wrong, or its folder holds another run; nothing has been trained then.
    """
    names, folder = stages_in(settings), Path(settings.training.output_dir)
    resume = settings.training.resume_from_checkpoint
    if resume not in (None, "last"):
        raise UserError(f"{RESUME} is {resume!r}; a recipe with stages goes on with 'last' alone")
    planned: list[tuple[str, Settings]] = []
    for number, name in enumerate(names, 1):
        own = folder if number == len(names) else folder / STAGES / f"{number}-{name}"
        flags = ["--stage", name, "--output_dir", str(own)]
        if planned:
            flags += ["--model_name_or_path", planned[-1][1].training.output_dir]
        planned.append((name, settings.again(*flags)))
    todo = [(name, stage) for name, stage in planned[:-1] if not finished(name, stage)] + planned[-1:]
    for name, stage in todo:
        going_on = resume is not None and checkpoints.list_checkpoints(Path(stage.training.output_dir))
        flags = ["--stage", name, "--output_dir", stage.training.output_dir]
        flags += ["--model_name_or_path", str(stage.model.model_name_or_path)]
        told = settings.again(*flags, without="" if going_on else RESUME)
        if settings.training.process_index == 0:
            print(f"Stage {names.index(name) + 1} of {len(names)}: {name}, in {stage.training.output_dir}")
        last = name == names[-1]
        run(replace(told, command=settings.command) if last else told, goes_on=not last)  # which repeats them all


def finished(name: str, stage: Settings) -> bool:
    """Whether a stage has been trained with these settings.

    Raises:
        UserError: it has been, and nothing says that the run goes on, or it was with other settings.
    """
    folder = Path(stage.training.output_dir)
    if stage.job.overwrite_output_dir or not (folder / RUN_FILE).is_file():
        return False
    if stage.training.resume_from_checkpoint is None:
        raise UserError(
            f"{folder} holds the stage {name!r} of an earlier run; go on with {RESUME} last, give another "
            "--output_dir, or --overwrite_output_dir to train it again"
        )
    record = RunRecord.load(folder).settings
    wanted = {key: value for key, value in asked(stage).items() if value is not None}
    for key in sorted({*wanted, *(key for key in record if key in asked(stage))} - set(APART)):
        if wanted.get(key) != record.get(key):
            raise UserError(
                f"the stage {name!r} in {folder} was trained with {key} {record.get(key)!r}, and it is now "
                f"{wanted.get(key)!r}; give another --output_dir, or --overwrite_output_dir to train it again"
            )
    return True


def asked(stage: Settings) -> dict[str, Any]:
    """What makes two runs of a stage the same."""
    return stage.own() | stage.loss_settings | {key: getattr(stage.training, key) for key in COMPARED}
