"""A folder of files -> one commit or pull request on the Hub, which can be repeated after any failure."""

from __future__ import annotations

import mmap
import os
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from ..errors import UserError, on_one_line
from .client import be_careful, unwrapped
from .manifest import CARD, MADE, MANIFEST, foreign_files, is_export, parse_manifest, read_manifest, shortened
from .merge import merge_or_refuse, split_card

ATTEMPTS, PAUSE, LONGEST_PAUSE = 5, 1.0, 30.0  # seconds; the pause doubles
T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """Where and how to push.

    repo_id: org/name; a name alone is completed by `with_owner`. private: None takes the account's default, and leaves
    an existing repository as it is. allow_deletions: files that an earlier push sent and the folder has no longer are
    deleted; without it such a push is refused, except for pictures and score files, which are made anew for each.
    """

    repo_id: str
    private: bool | None = None
    create_pr: bool = False
    revision: str | None = None
    message: str | None = None
    token: str | None = None
    allow_deletions: bool = False


def push(folder: str | Path, target: Target | str, only: Callable[[str], bool] | None = None,
         say: Callable[[str], Any] = print) -> str:  # fmt: skip
    """Upload what is new in ``folder`` as one commit; the address of the commit or pull request.

    A card that was edited on the Hub is merged with the new one. Nothing local is changed. target: a name alone stands
    for all defaults of `Target`. only: which files to send.

    Raises:
        UserError: the folder may not be published as it is, files would be deleted on the Hub, or the Hub refused it.
    """
    folder = Path(folder)
    target = Target(target) if isinstance(target, str) else target
    files = inspect(folder, target.token, partial=only is not None, say=say)
    check_target(target)
    token = token_for(target, folder)
    target = with_owner(target, folder, say)
    api = HfApi(token=token)
    chosen = [name for name in files if only is None or only(name)]

    def commit() -> Any:
        head = str(api.repo_info(target.repo_id, revision=target.revision).sha)
        operations = plan(api, folder, chosen, files, target, head, only is not None, say)
        message = target.message or f"Publish {target.repo_id.split('/')[-1]}"
        return head, api.create_commit(
            *(target.repo_id, operations),
            commit_message=message,
            revision=target.revision,
            create_pr=target.create_pr,
            parent_commit=head,
        )

    with_retries(
        lambda: api.create_repo(target.repo_id, private=target.private, exist_ok=True), target, folder, token, say
    )
    branch = target.revision
    if branch and branch != "main" and not branch.startswith("refs/"):
        with_retries(
            lambda: api.create_branch(target.repo_id, branch=branch, exist_ok=True),
            *(target, folder, token, say),
        )
    head, made = with_retries(commit, target, folder, token, say)
    if made.oid == head:
        say(f"{target.repo_id} has all of this already: no commit was made.")
    return str(made.pr_url or made.commit_url)


def plan(api: HfApi, folder: Path, chosen: list[str], files: dict[str, Path], target: Target, head: str, partial: bool,
         say: Callable[[str], Any]) -> list[Any]:  # fmt: skip
    """The operations that bring the repository at ``head`` to the state of the folder.

    Files that no export wrote stay.
    """
    manifest = _remote(api, target.repo_id, MANIFEST, head)
    try:
        before = parse_manifest(manifest) if manifest else {}
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{target.repo_id}/{MANIFEST} on the Hub is damaged ({on_one_line(error)}); delete it there"
        ) from error
    operations: list[Any] = [CommitOperationAdd(name, files[name]) for name in chosen if name != CARD]
    if CARD in chosen:
        ours, theirs = files[CARD].read_text(encoding="utf-8"), _remote(api, target.repo_id, CARD, head)
        if theirs is not None:
            ours, given_way = merge_or_refuse(before.get("card"), theirs, ours, f"{target.repo_id}/{CARD} on the Hub")
            if given_way:
                shown = "\n".join(f"  {line}" for line in given_way)
                say(f"WARNING: lines written by hand on the Hub were kept in place of these new ones:\n{shown}")
        operations.append(CommitOperationAdd(CARD, ours.encode()))
    if not partial:
        there = set(api.list_repo_files(target.repo_id, revision=head))
        stale = [name for name in before.get("files", {}) if name not in files and name in there]
        check_deletions(stale, folder, target, say)
        operations += [CommitOperationDelete(name) for name in stale]
    return operations


def check_deletions(names: list[str], folder: Path, target: Target, say: Callable[[str], Any]) -> None:
    """Say what will be deleted on the Hub.

    Raises:
        UserError: that was not allowed.
    """
    kept = [name for name in names if not name.startswith(MADE)]
    if kept and not target.allow_deletions:
        raise UserError(
            f"{target.repo_id} holds {', '.join(kept)}, which {folder} has not, so nothing was sent: export with it "
            f"again (onnx/ with --onnx), or have it deleted there with `{command(folder, target)} "
            "--allow_deletions`"
        )
    if names:
        say(f"Deleted from {target.repo_id}, since {folder} has it no longer: {', '.join(names)}")


def _remote(api: HfApi, repo_id: str, name: str, head: str) -> str | None:
    """A text file of the repository at a commit, None where it has no such file."""
    try:
        return Path(api.hf_hub_download(repo_id, name, revision=head)).read_text(encoding="utf-8")
    except EntryNotFoundError:
        return None


# ---- before the first byte goes out


def inspect(folder: Path, token: str | None = None, renewed: Path | None = None, partial: bool = False,
            say: Callable[[str], Any] | None = None) -> dict[str, Path]:  # fmt: skip
    """Name -> file of what is published: the files that export.json lists and the card, and nothing else.

    renewed: a folder whose files take the place of those of the same name. partial: files of the list may be missing.
    say: is told of files that the export did not write, which are left out.

    Raises:
        UserError: there is no export, the card is missing or invalid or links to a missing file, or a file is missing,
            a link, or holds a token or a path of this machine.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give an export or the output folder of a training run")
    if not is_export(folder):
        raise UserError(f"{folder} is no export, since it has no {MANIFEST}; focalcse export makes one")
    places = [renewed, folder] if renewed is not None else [folder]
    listed = next(read_manifest(place) for place in places if is_export(place))["files"]
    files: dict[str, Path] = {}
    for name in sorted({*listed, CARD, MANIFEST}):
        file = next((place / name for place in places if (place / name).is_file()), None)
        if file is not None:
            check_inside(file, folder if renewed is None or renewed not in file.parents else renewed)
            files[name] = file
        elif not partial and name != CARD:
            raise UserError(f"{folder} lacks {name}, which its export wrote; export the training folder again")
    check_card(folder, files)
    check_private(folder, files, token)
    if say is not None and (foreign := foreign_files(folder)):
        say(f"Not sent, since no export wrote them: {shortened(foreign)}")
    return files


def check_inside(file: Path, folder: Path) -> None:
    """A file of an export is a file, and not the name of one elsewhere.

    Raises:
        UserError: it is a link, or lies in a folder that is one.
    """
    for path in (file, *file.parents):
        if path == folder:
            return
        if path.is_symlink():
            raise UserError(f"{path} is a link, and links are not published; put the file itself there")


def check_card(folder: Path, files: dict[str, Path]) -> None:
    """README.md has metadata that the Hub takes, and the files that it shows."""
    if CARD not in files:
        raise UserError(f"{folder} has no {CARD}; `focalcse export` writes one from run.json")
    card = files[CARD].read_text(encoding="utf-8")
    try:
        metadata, text = split_card(card)
    except ValueError as error:
        raise UserError(f"the metadata of {folder / CARD} are not YAML: {error}") from error
    for key in ("library_name", "pipeline_tag"):
        if not isinstance(metadata.get(key), str):
            raise UserError(f"the metadata of {folder / CARD} lack {key}; `focalcse export` writes a complete card")
    for key in ("tags", "datasets", "model-index"):
        if not isinstance(metadata.get(key, []), list):
            raise UserError(f"{key} in the metadata of {folder / CARD} is {metadata[key]!r}; it must be a list")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?://|mailto:|#", link) and link not in files:
            raise UserError(f"{folder / CARD} points to {link!r}, which is not published with it")


def check_private(folder: Path, files: dict[str, Path], token: str | None = None) -> None:
    """No file names the home folder of this machine, the folder that is published, or the token."""
    home = Path(os.path.expanduser("~"))  # as it is written where there is none
    secrets = {"the token": token or get_token() or "", "this machine's path": f"{folder.resolve().parent}/"}
    if len(home.parts) > 1:
        secrets["this machine's home folder"] = f"{home}/"
    for name, file in files.items():
        for what, secret in secrets.items():
            if len(secret) > 4 and contains(file, secret.encode()):
                raise UserError(f"{folder / name} contains {what}, so nothing was sent; take it out or export again")


def contains(path: Path, secret: bytes) -> bool:
    if not path.stat().st_size:
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(secret) >= 0


def check_target(target: Target) -> None:
    """The name can be one of a repository, with or without its owner.

    Raises:
        UserError: it cannot, or a pull request is asked for against a branch.
    """
    try:
        validate_repo_id(target.repo_id)
    except HFValidationError:
        raise UserError(
            f"{target.repo_id!r} is not a repository name; give org/name, for instance me/focal-bert"
        ) from None
    if target.create_pr and target.revision not in (None, "main"):
        raise UserError(f"a pull request goes against main, not {target.revision!r}; leave one of the two out")


def token_for(target: Target, folder: Path) -> str:
    """The token to push with.

    Raises:
        UserError: there is none.
    """
    token = target.token or get_token()
    if not token:
        raise UserError(
            f"no token for {host()}: run `hf auth login` or set HF_TOKEN, then push {folder.name} again; "
            "nothing was sent"
        )
    return token


def with_owner(target: Target, folder: Path, say: Callable[[str], Any] = print) -> Target:
    """The target by its whole name: one without an owner belongs to the owner of the token, as for the Hub's tools.

    Raises:
        UserError: there is no token, or the Hub does not know it.
    """
    if "/" in target.repo_id:
        return target
    token = token_for(target, folder)
    owner = str(with_retries(lambda: HfApi(token=token).whoami(), target, folder, token, say)["name"])
    say(f"{target.repo_id} is taken as {owner}/{target.repo_id}, of the owner of the token")
    return replace(target, repo_id=f"{owner}/{target.repo_id}")


def describe(folder: str | Path, target: Target, renewed: Path | None = None) -> str:
    """What a push would send and where, without using the network; renewed: as for `inspect`.

    Raises:
        UserError: as `push` before it sends anything.
    """
    folder = Path(folder)
    left_out: list[str] = []
    files = inspect(folder, target.token, renewed, say=left_out.append)
    check_target(target)
    visibility = {None: "as the account's default (public for most) if it is new", True: "private if it is new"}
    sizes = {name: file.stat().st_size for name, file in files.items()}
    lines = [f"{size:>14,}  {name}" for name, size in sizes.items()]
    lines.append(f"{sum(sizes.values()):>14,}  bytes in {len(files)} files")
    lines += left_out
    lines.append(f"to {host()}/{target.repo_id}, {visibility.get(target.private, 'public if it is new')}")
    lines.append("as a pull request" if target.create_pr else f"as one commit on {target.revision or 'main'}")
    lines.append("the card is valid; nothing was sent (--dry_run)")
    return "\n".join(lines)


def host() -> str:
    return str(constants.ENDPOINT)


# ---- when something fails


def with_retries(call: Callable[[], T], target: Target, folder: Path, token: str, say: Callable[[str], Any]) -> T:
    """The answer of ``call``, which is tried again after 412, 429, 5xx and broken connections.

    Raises:
        UserError: the Hub refused it, or it failed `ATTEMPTS` times.
    """
    for attempt in range(1, ATTEMPTS + 1):
        be_careful()
        try:
            with unwrapped():
                return call()
        except OfflineModeIsEnabled as error:
            raise UserError("HF_HUB_OFFLINE is set, so nothing was sent; unset it and push again") from error
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else None
            if attempt == ATTEMPTS or not (status in (412, 429) or (status or 0) >= 500):
                raise explain(error, status, target, folder, token) from None
            asked = error.response.headers.get("Retry-After", "")
            pause = 0.0 if status == 412 else max(PAUSE * 2 ** (attempt - 1), float(asked) if asked.isdigit() else 0)
            reason = f"the Hub answered {status}"
        except (HTTPError, ConnectionError, TimeoutError) as error:
            if attempt == ATTEMPTS:
                raise UserError(f"no connection to {urlsplit(host()).netloc}; {again(target, folder)}") from error
            pause, reason = PAUSE * 2 ** (attempt - 1), f"the connection failed ({type(error).__name__})"
        except UserError:
            raise
        except (ValueError, OSError, RuntimeError, LookupError, TypeError, AttributeError) as error:
            text = " ".join(str(error).split()).replace(token, "…")
            raise UserError(f"{target.repo_id} was not updated: {text}; {again(target, folder)}") from None
        pause = min(pause, LONGEST_PAUSE)
        say(f"{reason}, trying again in {pause:g} s ({attempt} of {ATTEMPTS - 1})")
        time.sleep(pause)
    raise AssertionError("unreachable")


def explain(error: HfHubHTTPError, status: int | None, target: Target, folder: Path, token: str) -> UserError:
    """One sentence on an answer that another try would not change; it does not contain the token."""
    namespace = target.repo_id.split("/")[0] if "/" in target.repo_id else "your account"
    said = " ".join(str(error.server_message or "").split()).replace(token, "…")
    said = f" ({said[:200].rstrip('.')})" if said else ""
    login = "run `hf auth login` or set HF_TOKEN"
    if status == 401 or isinstance(error, RepositoryNotFoundError):
        reason = f"the Hub does not accept this token for {target.repo_id}{said}: {login} with a valid one"
    elif status == 403:
        reason = f"this token may not write to {namespace}{said}: {login} with one that has write access there"
    elif status == 402:
        reason = f"{namespace} has no storage left for it{said}"
    elif status == 409:
        reason = f"the Hub reports a conflict for {target.repo_id}{said}"
    elif status == 412:
        reason = f"somebody else keeps committing to {target.repo_id}"
    elif status == 429 or (status or 0) >= 500:
        reason = f"the Hub answered {status} {ATTEMPTS} times"
    else:
        reason = f"the Hub answered {status}{said}"
    return UserError(f"{reason}; {again(target, folder)}")


def again(target: Target, folder: Path) -> str:
    return f"the model is safe in {folder}, push it again with `{command(folder, target)}`"


def command(folder: Path, target: Target) -> str:
    return f"focalcse push {shlex.quote(str(folder))} {target.repo_id}"
