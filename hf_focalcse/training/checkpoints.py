"""Checkpoint folders: each appears whole or not at all, says what it holds, and is checked before it is used."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from ..errors import UserError, first_line
from ..options.tables import defaults, own_options
from ..runs.atomic import equal_modes, write_json
from ..runs.differing import differing

MANIFEST = "checkpoint.json"
STAGE = ".saving"  # what is being written lies here, and is moved when it is whole
PATTERN = re.compile(r"checkpoint-(\d+)")
RUN_FACTS = {  # what a run is besides its options -> its name in messages
    "world_size": "number of processes",
    "engine": "engine",
    "device": "device",
    "data": "training text (sha256)",
    "dev": "dev set (sha256)",
    "start": "weights that training starts from",
    "config": "configuration of the encoder",
    "views": "views of a row",
    "tokenizer": "tokenizer",
    "reference": "reference",
    "beside": "weights of the networks beside the encoder",
    "given_optimizer": "optimizer",
    "given_schedule": "schedule of the learning rate",
    "loss": "loss",
    "objective": "objective",
    "projection": "projection",
    "objective_settings": "settings of the objective",
    "lora": "LoRA",
    "base_weights": "the base encoder of LoRA (CRC-32 of its weights)",
}
NOT_ROOM = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)  # a write failed, but not for room
UNNAMED = {
    "objective": "Contrastive",
    "objective_settings": {},
}  # what a checkpoint means that was written before it was named


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint. notes: what the user must know about how it was found."""

    path: str
    run: dict[str, Any]
    notes: tuple[str, ...] = ()


def stage(output_dir: str | Path) -> Path:
    return Path(output_dir) / STAGE


def clear_stage(output_dir: str | Path) -> None:
    """Remove what a killed process left half written."""
    shutil.rmtree(stage(output_dir), ignore_errors=True)


def publish(folder: Path, target: Path, run: dict[str, Any], resumable: bool) -> None:
    """List the files of a whole ``folder`` in its manifest and move it to ``target``, in place of what is there."""
    equal_modes(folder)
    files = {p.relative_to(folder).as_posix(): _fingerprint(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    write_json(folder / MANIFEST, {"format": 1, "resumable": resumable, "run": run, "files": files})
    if target.exists():
        remove(target)
    os.rename(folder, target)
    _drop_if_empty(folder.parent)


def publish_files(folder: Path, target: Path) -> None:
    """Move the whole files of ``folder``, and of folders in it, into ``target``, one by one."""
    equal_modes(folder)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = target / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, place)
    shutil.rmtree(folder, ignore_errors=True)


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint; a process that is killed meanwhile leaves nothing that looks like one."""
    doomed = stage(checkpoint.parent) / f"deleted-{checkpoint.name}-{os.getpid()}"
    doomed.parent.mkdir(exist_ok=True)
    os.rename(checkpoint, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    _drop_if_empty(doomed.parent)


def list_checkpoints(output_dir: str | Path) -> list[Path]:
    """The folders named ``checkpoint-N``, by N."""
    found = [p for p in Path(output_dir).glob("checkpoint-*") if p.is_dir() and PATTERN.fullmatch(p.name)]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    match = PATTERN.fullmatch(checkpoint.name)
    return int(match[1]) if match else -1


def rotate(output_dir: str | Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints above ``limit``, never the best nor the last."""
    checkpoints = list_checkpoints(output_dir)
    if not limit or limit < 1:
        return
    kept = {checkpoints[-1].name, *([Path(best).name] if best else [])} if checkpoints else set()
    excess = len(checkpoints) - max(limit, len(kept))
    for checkpoint in [c for c in checkpoints if c.name not in kept][: max(excess, 0)]:
        remove(checkpoint)


def damage(checkpoint: Path, whole: bool = True) -> str | None:
    """What is wrong with a checkpoint, or None if every file of its manifest is as it was written.

    whole: it must have an optimizer to go on with.
    """
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        files, resumable, of_run = manifest["files"], manifest["resumable"], manifest["run"]
    except FileNotFoundError:
        return f"it has no {MANIFEST}, so it is incomplete or was not written by this program"
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        return f"its {MANIFEST} cannot be read"
    if not (isinstance(files, dict) and isinstance(of_run, dict)):
        return f"its {MANIFEST} cannot be read"
    for name, expected in files.items():
        if not (isinstance(expected, list) and len(expected) == 2 and isinstance(expected[0], int)):
            return f"its {MANIFEST} cannot be read"
        try:
            found = _fingerprint(checkpoint / name.replace("\\", "/"))  # as version 0.1 wrote them on Windows
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if found[0] != expected[0]:
            return f"{name} has {found[0]:,} bytes where {expected[0]:,} were written"
        if found != expected:
            return f"the content of {name} is not what was written"
    if resumable or not whole:
        return None
    return "it was saved with --save_only_model, so it has no optimizer to go on with"


def find_checkpoint(output_dir: str | Path, asked: str) -> Checkpoint | None:
    """The checkpoint to resume from: the one at a path or, with "last", the last whole one of ``output_dir``; None
    where there is no checkpoint yet, so that the run starts from the beginning.

    Raises:
        UserError: there is none at the path, or it is damaged.
    """
    if asked.lower() not in ("last", "true", "latest"):
        path = Path(asked)
        if not path.is_dir():
            raise UserError(
                f"--resume_from_checkpoint: there is no folder {asked!r}; give last, or one of: "
                f"{', '.join(map(str, list_checkpoints(output_dir))) or 'none in ' + str(output_dir)}"
            )
        problem = damage(path)
        if problem:
            raise UserError(
                f"checkpoint {asked} cannot be resumed from: {problem}; give --resume_from_checkpoint last for the "
                f"last whole one of {output_dir}"
            )
        return Checkpoint(asked, _run_of(path))
    damaged: list[str] = []
    for path in reversed(list_checkpoints(output_dir)):
        problem = damage(path)
        if problem is None:
            notes = tuple(f"{said}; {path.name} is used in its place" for said in damaged)
            return Checkpoint(str(path), _run_of(path), notes)
        damaged.append(f"checkpoint {path} is damaged: {problem}")
    if damaged:
        raise UserError(
            f"{damaged[0]}, and no checkpoint before it is whole; start again with --overwrite_output_dir in place of "
            "--resume_from_checkpoint"
        )
    return None


def differences_of_run(checkpoint: Checkpoint, run: dict[str, Any]) -> list[str]:
    """What differs between the run of a checkpoint and this one, in words.

    An option that is younger than the checkpoint had its default. Of a checkpoint of an older version, which does not
    have its ``start``, only that is compared which it recorded.
    """
    before = UNNAMED | checkpoint.run
    if "start" in checkpoint.run:
        before = defaults() | before
        names = [key for key in run if key in before or key in own_options()]
    else:
        names = [key for key in run if key in before or key == "pooler"]
    found = differing(*({key: _plain(of.get(key)) for key in names} for of in (before, run)))
    first = [key for key in RUN_FACTS if key in found]
    told = {key: _where_they_differ(*found[key]) for key in [*first, *(key for key in found if key not in first)]}
    return [f"{RUN_FACTS.get(key, f'--{key}')} was {was!r} and is {now!r}" for key, (was, now) in told.items()]


def _where_they_differ(was: Any, now: Any) -> tuple[Any, Any]:
    """Two values, of mappings the parts that are not equal."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return was, now
    same = {key for key in was.keys() & now.keys() if was[key] == now[key]}
    was, now = ({key: value for key, value in of.items() if key not in same} for of in (was, now))
    return was, now


def _plain(value: Any) -> Any:
    """As a manifest holds it."""
    return json.loads(json.dumps(value, default=str))


@contextlib.contextmanager
def read_without_code(checkpoint: str | None) -> Iterator[None]:
    """Within it a checkpoint is read; torch's reader builds tensors and nothing else of its pickles.

    Raises:
        UserError: one of them asks for more.
    """
    try:
        yield
    except UnpicklingError as error:
        raise UserError(
            f"{checkpoint} holds a file of torch that is damaged or would run code ({first_line(error)[:60]}); delete "
            "that checkpoint, and resume from another one"
        ) from error


def saving_failed(error: Exception, output_dir: str | Path) -> UserError:
    """One sentence for a failed save, after removing what was half written; the last whole checkpoint is named."""
    reason = " ".join(str(error).split())[:300]
    free = _free(output_dir) / 1e6
    clear_stage(output_dir)
    left = list_checkpoints(output_dir)
    intact = f"the previous checkpoint {left[-1]} is intact" if left else "there is no earlier checkpoint"
    remedy = "see that the folder is there and can be written"
    if getattr(error, "errno", None) not in NOT_ROOM:  # torch and safetensors tell no number
        reason, remedy = f"{reason}; {free:.1f} MB were free there", "free space or make the folder writable"
    return UserError(
        f"saving into {output_dir} failed ({reason}): {intact}; {remedy}, then go on with "
        "--resume_from_checkpoint last"
    )


def _free(folder: str | Path) -> int:
    """Bytes that are free where a folder is, or was."""
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _drop_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _fingerprint(file: Path) -> list[int]:
    """Bytes and CRC-32."""
    size = crc = 0
    with open(file, "rb") as stream:
        while block := stream.read(1 << 20):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]


def _run_of(checkpoint: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["run"]
    config = checkpoint / "config.json"
    if "pooler" not in run and config.is_file():  # version 0.1 wrote it there alone
        said = json.loads(config.read_text(encoding="utf-8")).get("focal_cl") or {}
        run |= {"pooler": said["pooler"]} if "pooler" in said else {}
    return run
