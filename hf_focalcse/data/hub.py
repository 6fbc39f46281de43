"""A data set on the Hub -> a cached file of it, a table, or the rows of a split at a pinned revision."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError, on_one_line
from .places import ending
from .reading import FORMATS

OURS = ("Text", "Csv")  # builders of `datasets` whose files are read here
# What `datasets` says where a configuration is missing or unknown: a list of those that there are.
CONFIGS = re.compile(r"(?:available configs|Available)[^\[]*(\[[^\]]*\])")


def download(dataset_name: str, dataset_file: str, revision: str | None) -> Path:
    """The cached copy of one file of a data set repository."""
    from huggingface_hub import constants, errors, hf_hub_download

    try:
        return Path(hf_hub_download(dataset_name, dataset_file, repo_type="dataset", revision=revision))
    except errors.RevisionNotFoundError as error:
        raise UserError(
            f"the Hub data set {dataset_name} has no revision {revision!r}; give another --dataset_revision"
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise UserError(
            f"the Hub data set {dataset_name} has no file {dataset_file!r}; choose one from "
            f"{constants.ENDPOINT}/datasets/{dataset_name}/tree/{revision or 'main'}"
        ) from error
    except errors.HFValidationError as error:
        raise UserError(f"{dataset_name!r} is not a Hub id (owner/name); a local file goes to --train_file") from error
    except (errors.RepositoryNotFoundError, errors.LocalEntryNotFoundError, errors.HTTPError, OSError) as error:
        raise _unreachable(dataset_name, error) from error


def files_of_split(dataset_name: str, config: str | None, split: str, revision: str | None) -> list[Path]:
    """The cached copies of a split's files where it is made of plain text or .csv, which `datasets` would read by
    other rules than those here; none where it is something else, or there is no network.

    Raises:
        UserError: the data set has several configurations and none was named.
    """
    import datasets
    from huggingface_hub import constants
    from huggingface_hub.errors import HTTPError

    if Path(dataset_name).exists() or constants.HF_HUB_OFFLINE:
        return []  # `load_split` says what is wrong, or finds a copy
    try:
        builder = datasets.load_dataset_builder(dataset_name, config, revision=revision)
    except (HTTPError, datasets.exceptions.DatasetsError, OSError, ValueError) as error:
        raise _no_config(dataset_name, error) or _unreachable(f"{dataset_name} (split {split!r})", error) from error
    addresses = [str(file) for file in (builder.config.data_files or {}).get(split, ())]
    start = f"hf://datasets/{dataset_name}@"
    if type(builder).__name__ not in OURS or not all(a.startswith(start) and ending(a) in FORMATS for a in addresses):
        return []
    return [
        download(dataset_name, path, commit)
        for commit, _, path in (address.removeprefix(start).partition("/") for address in addresses)
    ]


def _no_config(dataset_name: str, error: Exception) -> UserError | None:
    """What to say where a data set has several configurations and none of them, or an unknown one, was named."""
    found = CONFIGS.search(str(error))
    if found is None:
        return None
    names = ", ".join(re.findall(r"'([^']*)'", found[1]))
    return UserError(
        f"the Hub data set {dataset_name} has several configurations; give --dataset_config, one of: {names}"
    )


def load_split(dataset_name: str, config: str | None, split: str, revision: str | None) -> Any:
    """A split of a data set, loaded by ``datasets``."""
    import datasets
    from huggingface_hub.errors import HTTPError

    if Path(dataset_name).exists():  # load_dataset would read it
        raise UserError(
            f"{dataset_name} is on this disk, and --dataset_name is a Hub id; give a local file to --train_file"
        )
    try:
        return datasets.load_dataset(dataset_name, config, split=split, revision=revision)
    except (HTTPError, datasets.exceptions.DatasetsError, OSError, ValueError) as error:
        raise _no_config(dataset_name, error) or _unreachable(f"{dataset_name} (split {split!r})", error) from error


def pinned_rows(hub_id: str, revision: str, split: str, remedy: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place for messages, row) for each row of a split of a data set at the given revision.

    remedy: what to do where it cannot be loaded.
    """
    import datasets
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HTTPError

    what = f"{hub_id} at revision {revision[:8]}"
    offline = constants.HF_HUB_OFFLINE
    try:
        if not offline:  # one request with a time limit, since load_dataset alone retries for half a minute
            HfApi().dataset_info(hub_id, revision=revision, timeout=10)
        rows = datasets.load_dataset(hub_id, revision=revision, split=split)
    except (HTTPError, OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = f"{type(error).__name__}: {on_one_line(error)}"
        cached = "" if offline else ", or set HF_HUB_OFFLINE=1 to use copies downloaded before"
        raise UserError(f"cannot load {what} from the Hugging Face Hub ({reason}); {remedy}{cached}") from error
    # offline, datasets takes the newest copy in its cache, whatever revision was asked for
    if offline and not all(revision in file["filename"] for file in rows.cache_files):
        raise UserError(f"the cached copy of {hub_id} is not revision {revision[:8]}; {remedy}")
    for number, row in enumerate(rows, start=1):
        yield f"{what}, row {number}", row


def _unreachable(what: str, error: Exception) -> UserError:
    reason = "; ".join(on_one_line(error).split("; ")[:2])  # the clauses that follow are advice
    return UserError(
        f"the Hub data set {what} could not be loaded ({reason}); check its name and the network, use "
        "`hf auth login` where it is private, or download a file yourself and give it to --train_file"
    )
