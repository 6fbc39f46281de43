"""What a script gives to a trainer -> encoder, loss, text and dev tasks to train with, or one sentence why not.

The command line gives all of them as objects; people who know Trainer give names, folders and data sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset
from transformers import set_seed
from transformers.utils import logging

from ..data.formats import called, require_columns
from ..data.given import KNOWN, SOURCE, iterate, measure, take_rows, text_of
from ..data.pairs import PairRows, header_of, pairs_of, read_pairs, usual_columns
from ..data.views import Collator
from ..encoder.head import FocalCLMixin
from ..encoder.loading import load_model, require_projection
from ..encoder.packaged import resolve_model
from ..errors import UserError
from ..evaluation import PairSet, read_tasks
from ..evaluation.copies import CopySet, copies_of
from ..evaluation.pair_sets import COLUMNS, OTHER_NAMES, pair_of
from ..losses import ContrastiveLoss, build_loss
from .engines import whole_model
from .refusing import DEFAULT_LOSS

logger = logging.get_logger(__name__)
STREAM = "a stream"  # in records and on cards
TASK = ("key", "headline", "texts", "score")  # what an object has that is a task, see `Task`


# ---- the encoder and the loss


def take_model(model: Any, seed: int, loss: Any = None) -> Any:
    """An encoder of this package: the one given, or that of a name or folder, loaded as the command line does.

    seed: for a projection that is drawn anew, as it is where the encoder was not trained with this package.

    Raises:
        UserError: it cannot be loaded, or it is a model that is not one of ours.
    """
    if isinstance(model, (str, Path)):
        place = resolve_model(str(model))
        set_seed(seed)
        with whole_model():
            loaded = load_model(place.path, revision=place.revision, default_pooler=True)
        if "loss" not in loaded.config.focal_cl and loaded.projection_use != "none":
            loaded.reset_projection()
        record_training(loaded, loss, place.base)
        return loaded
    return require_ours(model)


def require_ours(model: Any) -> Any:
    """The model itself.

    Raises:
        UserError: it is not an encoder of this package, or has adapters.
    """
    by_others = getattr(model, "lora", None) is None and any(
        hasattr(part, "lora_A") for part in getattr(model, "modules", tuple)()
    )
    if hasattr(model, "peft_config") or by_others:
        raise UserError(
            f"model is a {type(model).__name__} with adapters, which checkpoints and exports of this package would "
            "not hold rightly; give the encoder of load_model itself, without get_peft_model or add_adapter: "
            "hf_focalcse.add_lora(load_model('…'), rank=16) trains it by LoRA"
        )
    if not isinstance(model, FocalCLMixin):
        kind = type(model).__name__
        raise UserError(
            f"model is a {kind}, not an encoder of this package; give its name or folder, FocalCSETrainer(model='…'), "
            "or load_model('…')"
        )
    return model


def take_reference(reference: Any) -> Any:
    """The encoder to compare with: None, the one given, or that of a name or folder, which must say how it pools; or a
    list of several.

    Raises:
        UserError: it cannot be loaded, nothing says how it pools, or it is a model that is not one of ours.
    """
    if reference is None:
        return None
    if isinstance(reference, (list, tuple)):
        return [take_reference(one) for one in reference]
    if not isinstance(reference, (str, Path)):
        return require_ours(reference)
    name = str(reference)
    try:
        with whole_model():
            model = load_model(name)
        require_projection(model, name)
    except UserError as error:
        raise UserError(
            f"reference: {error}; to choose, give reference=load_model({name!r}, pooler='mean')"
        ) from error
    return model


def record_training(model: Any, loss: Any, base: str | None, **more: Any) -> None:
    """Write into the config what the encoder is going to be trained with. loss: None where that is not known yet.
    base: the Hub id of the base encoder; None leaves what is recorded."""
    recorded = model.config.focal_cl
    settings = {} if loss is None else {key: value for key, value in loss.config.items() if key != "name"}
    named = {} if loss is None else {"loss": loss.name}
    model.config.focal_cl = recorded | named | settings | {"base_model": base or recorded.get("base_model")} | more


def take_loss(loss: Any) -> ContrastiveLoss:
    """A loss by name or as an object; None is focal.

    Raises:
        UserError: there is no such loss, or it is something else.
    """
    if loss is None or isinstance(loss, str):
        return build_loss(loss or DEFAULT_LOSS)
    if not isinstance(loss, ContrastiveLoss):
        what = f"the class {loss.__name__}" if isinstance(loss, type) else type(loss).__name__
        raise UserError(
            f"loss is {what}; give the name of a loss, {DEFAULT_LOSS!r}, or build_loss({DEFAULT_LOSS!r}, m=0.3)"
        )
    return loss


# ---- training text


def take_sentences(data: Any, collator: Collator, tokenizer: Any, args: Any) -> Any:
    """The rows to train on, as ``collator`` reads them; None stays None, for a trainer that only scores.

    Raises:
        UserError: as for `take_rows`, or it is a stream without what a stream needs.
    """
    if data is None:
        return None
    wanted = collator.columns
    if wanted is not None and len(wanted) > 1 and not isinstance(data, PairRows) and is_pairs(data, wanted):
        rows = read_pairs(data, wanted) if isinstance(data, (str, Path)) else pairs_of(data, wanted, SOURCE)
    else:
        rows = take_rows(data, wanted)
    if isinstance(rows, IterableDataset) and args.max_steps <= 0:
        raise UserError("train_dataset is a stream, whose length is not known; say how many steps with max_steps")
    if isinstance(rows, IterableDataset) and args.world_size > 1 and not args.dataloader_drop_last:
        raise UserError(
            "train_dataset is a stream, whose last batch cannot be shared out among several processes; leave it out "
            "with dataloader_drop_last=True"
        )
    if measure(rows, tokenizer, collator.max_seq_length):
        for note in rows.report.notes:
            if not any(alarm.endswith(note) for alarm in rows.report.alarms):  # which the trainer raises
                logger.warning("training text: %s", note)
    return rows


def is_pairs(data: Any, columns: tuple[str, ...]) -> bool:
    """Whether ``data`` can be read as pairs with these columns: a file or rows of a known number."""
    return columns == pair_columns_of(data) and not isinstance(data, IterableDataset)


def pair_columns_of(data: Any) -> tuple[str, ...] | None:
    """The columns of pairs that a data set in memory or a file has under their usual names; None where there are none,
    or a column is called text or sentence."""
    if isinstance(data, (str, Path)):
        columns = header_of(data)
    elif hasattr(data, "column_names"):
        columns = list(data.column_names or ())
    elif hasattr(data, "columns") and isinstance(data, PairRows):
        return data.columns
    else:
        first = data[0] if isinstance(data, (list, tuple)) and data else None
        columns = list(first) if isinstance(first, Mapping) else []
    return None if set(KNOWN) & set(columns) else usual_columns(columns)


def check_amount(data: Any, args: Any) -> None:
    """See that the training data make at least one batch on each process.

    Raises:
        UserError: they are none, or too few.
    """
    if data is None:
        raise UserError("there is no training data; give train_dataset")
    batch = args.train_batch_size * args.world_size
    if args.dataloader_drop_last and not isinstance(data, IterableDataset) and len(data) < batch:
        raise UserError(
            f"train_dataset holds {len(data)} sentences, fewer than one batch of {batch}; add text, or lower "
            "per_device_train_batch_size"
        )


def describe_data(data: Any, trained_on: int) -> dict[str, Any]:
    """For run.json. trained_on: the sentences in the steps so far, which is all that is known of a stream."""
    report = getattr(data, "report", None)
    if report is not None:
        return dict(report.to_dict())
    if isinstance(data, IterableDataset):
        return {"source": STREAM, "kept": trained_on}
    return {"source": SOURCE, "kept": len(data)}


def fingerprint(data: Any, workers: int = 0) -> Any:
    """What is equal where a resumed run has the data of the run before it. workers: that read them, each a part of a
    stream, so that its order depends on them."""
    report = getattr(data, "report", None)
    if report is not None:
        return report.sha256
    if isinstance(data, IterableDataset):
        return STREAM if workers < 2 else f"{STREAM}, read by {workers} processes"
    return len(data)


# ---- dev tasks


def take_dev(dev: Any, eval_dataset: Any) -> list[Any]:
    """The dev tasks, under either name.

    Raises:
        UserError: both are given, or as for `take_tasks`.
    """
    if dev is not None and eval_dataset is not None:
        raise UserError("dev and eval_dataset are two names for the same thing; leave one out")
    return take_tasks(dev, what="dev") if eval_dataset is None else take_tasks(eval_dataset)


def choose_tasks(asked: Any, dev: list[Any]) -> list[Any]:
    """The dev tasks that have the name ``asked``; without one, the tasks that it stands for, see `take_tasks`."""
    known = [task for task in dev if isinstance(asked, str) and asked in (task.key, task.key.split("/")[0])]
    return known or take_tasks(asked)


def take_tasks(given: Any, name: str = "dev", what: str = "eval_dataset") -> list[Any]:
    """Dev tasks: of a path, a data set of labelled pairs or sentences, a task, or a list or mapping of these; None has
    none.

    name: of the task that a data set becomes, whose scores then begin with ``name/dataset``; in a mapping it is the
    key. Files and tasks keep their own names; the scores of sentences begin with ``name/copies``.

    Raises:
        UserError: it is nothing that could be scored, or two tasks have one name.
    """
    if given is None:
        return []
    if isinstance(given, (str, Path)):
        return list(read_tasks(str(given)))
    if all(hasattr(given, part) for part in TASK):
        return [given]
    if isinstance(given, Mapping):
        found = [task for key, value in given.items() for task in take_tasks(value, str(key), f"{what}[{key!r}]")]
    elif isinstance(given, (list, tuple)) and not (given and isinstance(given[0], Mapping)):
        found = [task for i, value in enumerate(given) for task in take_tasks(value, f"{name}{i + 1}", f"{what}[{i}]")]
    else:
        return [task_of(given, name, what)]
    keys = [task.key for task in found]
    again = next((key for key in keys if keys.count(key) > 1), None)
    if again:
        raise UserError(f"{what} has several sets called {again}; give them as a mapping with a name for each")
    return found


def task_of(rows: Any, name: str, what: str) -> PairSet | CopySet:
    """Labelled pairs of a data set, or of a list of rows; of one with a column text or sentence, its sentences, which
    judge without labels.

    Raises:
        UserError: it is no data set, or not one of sentence1, sentence2 and score, nor one of sentences.
    """
    if not hasattr(rows, "__iter__"):
        raise UserError(
            f"{what} is {type(rows).__name__} {repr(rows)[:60]}; give a path, a data set with "
            f"{', '.join(COLUMNS)}, a task of load_tasks or read_pairs, or a list or mapping of these"
        )
    rows = rows if hasattr(rows, "column_names") else list(rows)
    first = next(islice(iter(rows), 1), None)
    if not isinstance(first, Mapping):
        empty = "empty" if first is None else f"made of {type(first).__name__}"
        raise UserError(f"{what} is {empty}; labelled pairs have the columns {', '.join(COLUMNS)}")
    found = list(map(str, first))
    text = next((column for column in KNOWN if column in found), None)
    names = dict(zip(COLUMNS, called(COLUMNS, found, OTHER_NAMES), strict=True))
    if text and not set(names.values()) & set(found):
        texts = (text_of(cell, number, what) for number, cell in enumerate(iterate(rows, text)))
        return copies_of(filter(None, texts), name, SOURCE, f"{what} has no labels, and")
    require_columns(list(names.values()), found, what)
    pairs = tuple(
        pair_of(f"{what}, row {number}", row | {column: row[name] for column, name in names.items()})
        for number, row in enumerate(map(dict, rows))
    )
    return PairSet(name.replace("/", "-"), "dataset", pairs, source=SOURCE)
