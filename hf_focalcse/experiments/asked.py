"""What a training run is asked to do, and in what a recorded command line differs from it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..parsing.arguments import Settings, loss_settings, parse, translate
from .differences import differing

OURS = {  # flags that no grid may set -> why
    "output_dir": "every run has a folder of its own below --runs",
    "overwrite_output_dir": "finished runs are skipped; delete a folder to train it again",
    "resume_from_checkpoint": "interrupted runs are resumed anyway",
    "push_to_hub": "publish the run you choose afterwards, with focalcse push",
}
HARMLESS = {  # settings that change what is printed or kept, never what is learnt
    *("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "allow_resume_mismatch", "recipe"),
    *("save_total_limit", "save_only_model", "disable_tqdm", "log_level", "log_level_replica", "log_on_each_node"),
    *("logging_dir", "logging_steps", "logging_first_step", "logging_strategy", "report_to", "run_name"),
    *("dataloader_num_workers", "per_device_eval_batch_size", "measure_steps", "project", "trackio_space_id"),
}


def settings_asked(settings: Settings) -> dict[str, Any]:
    """Every setting that can change what is learnt, with the defaults of the loss filled in and paths resolved."""
    groups = (settings.model, settings.loss, settings.reference, settings.views, settings.data, settings.dev)
    found = {k: v for group in (*groups, settings.distributed) for k, v in asdict(group).items()}
    own = {setting.name: setting.default for setting in loss_settings()[settings.loss.loss]}
    found |= own | settings.loss_settings | settings.training.to_dict()
    for name in ("train_file", "eval_file", "sts_dir"):
        if found[name] is not None and Path(found[name]).exists():
            found[name] = str(Path(found[name]).resolve())
    found = {key: value for key, value in found.items() if key not in HARMLESS and "token" not in key}
    return json.loads(json.dumps(found, default=str))


def told_differences(asked: dict[str, Any], command: list[str], kept: dict[str, Any] | None = None) -> list[str]:
    """The settings in which a recorded command line differs from ``asked``, in words.

    kept: the settings as they were when the command was started. They replace those that the command line itself does
    not name, since its recipe may have been edited in the meantime.

    Raises:
        UserError: the command line can no longer be parsed, and no settings were kept.
    """
    before: dict[str, Any] = {}
    named: set[str] = set()
    try:
        settings = parse(flags_of(command))
        before, named = settings_asked(settings), settings.explicit
    except UserError:  # for instance because its recipe was deleted
        if kept is None:
            raise
        before = dict.fromkeys(kept)
    known = before.keys() | asked.keys()  # a setting of another version of this package is no difference
    before |= {key: value for key, value in (kept or {}).items() if key in known and key not in named}
    return [f"{key} is {before.get(key)!r} there and {asked.get(key)!r} here" for key in differing(before, asked)]


def flags_of(command: list[str]) -> list[str]:
    """A command line without the words that start it."""
    return command[next((i for i, word in enumerate(command) if word.startswith("--")), len(command)) :]


def same_command(command: list[str], started: list[str]) -> bool:
    """Whether ``command`` is ``started`` with no other flags than those that the sweep itself adds."""
    words, first = translate(flags_of(command), []), translate(flags_of(started), [])
    added = {word.partition("=")[0][2:] for word in words[len(first) :] if word.startswith("--")}
    return words[: len(first)] == first and added <= OURS.keys()
