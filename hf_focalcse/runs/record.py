"""`RunRecord` <-> run.json: what is needed to repeat a run, and how the run went."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..errors import UserError, masked
from ..options.field import listed
from ..options.tables import paths
from .atomic import write_json
from .environment import current_commit, describe_hardware, library_versions

FORMAT = 1
RUN_FILE = "run.json"
ADDED_LATER = (  # fields that older files may lack
    *("publication", "step_memory", "dev_sets"),
    *("start", "differences", "start_differences"),
)
TEXTS, NUMBERS, ROWS = "texts", "numbers by name", "rows"
KINDS: dict[str, Any] = {  # field -> what it holds
    **dict.fromkeys(("settings", "loss", "model", "data", "versions", "hardware", "step_memory", "publication"), dict),
    **dict.fromkeys(("dev_sets", "differences", "start_differences"), dict),
    **dict.fromkeys(("command", "alarms", "notes"), TEXTS),
    **dict.fromkeys(("baseline", "start", "final"), NUMBERS),
    **{
        "stages": ROWS,
        "log": ROWS,
        "seed": int,
        "world_size": int,
        "seconds": float | int | None,
        "best": dict | None,
    },
    **{"recipe": str | None, "git_commit": str | None, "started": str, "baseline_of": str},
}
AS_PUBLISHED = "as published"  # the encoder before training, with the pooling and prompt that its checkpoint records
# A path that stands out from other text: it begins at the root, the home folder or a drive, or with dots.
PATH = re.compile(r"""(?<![\w.:/~\\)\]-])(?:[A-Za-z]:|~\w*|\.{1,2})?(?:[/\\][^\s/\\'"`,;:()\[\]]+)+[/\\]?""")
PROMPTS = ("prompt", "prompts")  # keys of texts that stay as they are, slashes too
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
A_PATH = re.compile(r"(?:~\w*|\.{0,2}|[A-Za-z]:)[/\\]")  # the beginning of a value that is a path, spaces and all


@dataclass
class RunRecord:
    """One training run. Scores are x 100 and named task/split/aggregation/metric; times are in seconds.

    The differences are the fields of `hf_focalcse.evaluation.Difference`: both scores, and the 95 % interval of what
    lies between them.
    """

    command: list[str]  # script and flags; running it again with `settings` unchanged repeats the run
    recipe: str | None
    settings: dict[str, Any]  # our options, and arguments of transformers that matter or differ from their default
    loss: dict[str, Any]  # name, settings, formula, paper, citation, mask_duplicates
    model: dict[str, Any]  # name_or_path, base_model, pooler, projection, dropout, parameters, weights_sha256, …
    data: dict[str, Any]  # the data report
    seed: int
    world_size: int
    format: int = FORMAT
    versions: dict[str, str] = field(default_factory=dict)
    git_commit: str | None = None
    hardware: dict[str, Any] = field(default_factory=dict)
    step_memory: dict[str, Any] = field(default_factory=dict)  # the estimate before the first step, in bytes
    started: str = ""  # UTC, ISO 8601
    seconds: float | None = None  # of all parts of a resumed run, without steps that were lost and done again
    log: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)  # what its encoder was trained with before, see `stage`
    dev_sets: dict[str, str] = field(default_factory=dict)  # dev set -> its sha256
    baseline: dict[str, float] = field(default_factory=dict)  # the dev scores before the first step
    baseline_of: str = ""  # "as published", or the pooling where nothing records one; see `baseline_name`
    start: dict[str, float] = field(default_factory=dict)  # those as training starts, where it embeds otherwise
    final: dict[str, float] = field(default_factory=dict)  # the dev scores of what was saved
    differences: dict[str, dict[str, Any]] = field(default_factory=dict)  # score -> from baseline to final
    start_differences: dict[str, dict[str, Any]] = field(default_factory=dict)  # score -> from start to final
    best: dict[str, Any] | None = None  # step, metric, value
    alarms: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    publication: dict[str, Any] = field(default_factory=dict)  # license, language; in an export also what it holds

    def __post_init__(self) -> None:
        self.versions = self.versions or library_versions()
        self.hardware = self.hardware or describe_hardware()
        self.git_commit = self.git_commit or current_commit()
        self.started = self.started or datetime.now(timezone.utc).isoformat(timespec="seconds")

    @property
    def baseline_name(self) -> str:
        """What the scores in ``baseline`` are of: older versions measured none but the run's own pooling."""
        return self.baseline_of or self.start_name

    @property
    def baseline_encoder(self) -> str:
        """The same with its article, for a sentence."""
        return f"the encoder {self.baseline_name}"

    @property
    def start_name(self) -> str:
        """What the scores in ``start`` are of: the encoder with the run's pooling and, if that is not what it was
        published with, its prompt or template."""
        published = self.model.get("published") or {}  # older records do not say prompt and template
        now = {"prompt": self.model.get("prompt"), "template": self.model.get("prompt_template") or ""}
        new = any(published.get(name) not in (None, value) for name, value in now.items())
        return f"with pooling {self.model.get('pooler', 'unknown')}{' and the new prompt' * new} before training"

    def save(self, folder: str | Path) -> Path:
        """Write run.json into ``folder``, whole or not at all, without tokens."""
        return write_json(Path(folder) / RUN_FILE, without_secrets(asdict(self)))

    def publishable(self) -> RunRecord:
        """The record as it may be published: paths cut to their last part, and no text of the training data."""
        places = paths()
        local = {str(value) for key in places for value in listed(self.settings.get(key))}
        at_path = False  # whether the last flag names a place; several may follow it
        for part in self.command:
            if part.startswith("--"):
                flag, _, part = part.partition("=")
                at_path = flag[2:].replace("-", "_") in places
            local |= {part} if at_path else set()
        for encoder in (self.model, self.model.get("reference") or {}):
            names = listed(encoder.get("name_or_path"))
            likely = [name for name in names if HUB_ID.fullmatch(name)]  # all that older records of references tell
            local |= {name for name in names if name not in listed(encoder.get("base_model", likely))}
        local.add(self.recipe or "")
        values = [value for setting in self.settings.values() for value in listed(setting)]
        values += [part.partition("=")[2] if part.startswith("--") else part for part in self.command]
        local |= {value for value in values if isinstance(value, str) and A_PATH.match(value)}
        content = asdict(self)
        for name in ("command", "recipe", "settings", "model", "data", "stages", "notes", "alarms", "best"):
            content[name] = without_paths(content[name], local)
        told = ("formula", "networks", "paper", "citation")  # which hold addresses of the web
        content["loss"] = {k: v if k in told else without_paths(v, local) for k, v in content["loss"].items()}
        content["data"].pop("samples", None)
        for file in content["data"].get("files", ()):
            file["name"] = last_part(file["name"])
        return type(self)(**content)

    @classmethod
    def load(cls, folder: str | Path) -> RunRecord:
        """Read run.json of ``folder``.

        Raises:
            UserError: it is missing, not JSON, or lacks a key.
        """
        path = Path(folder) / RUN_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            content = {name: {} for name in ADDED_LATER} | {"baseline_of": "", "stages": []} | content
            for name, of in content.items():
                if name in KINDS and not _is(of, KINDS[name]):
                    raise ValueError(f"{name} is {str(of)[:60]!r}")
            return cls(**{f.name: content[f.name] for f in fields(cls)})
        except FileNotFoundError as error:
            raise UserError(f"there is no {path}; give the output folder of a training run") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is not the record of a run ({error!r}); run the training again") from error


def _is(value: Any, kind: Any) -> bool:
    """Whether a value of run.json is of a kind of `KINDS`."""
    if kind == TEXTS:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if kind == ROWS:
        return isinstance(value, list) and all(isinstance(one, dict) for one in value)
    if kind == NUMBERS:
        return isinstance(value, dict) and all(isinstance(one, int | float) for one in value.values())
    return isinstance(value, kind)


def without_secrets(value: Any) -> Any:
    """``value`` with `masked` strings."""
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return masked(value) if isinstance(value, str) else value


def without_paths(value: Any, local: Iterable[str] = ()) -> Any:
    """``value`` with every path in its strings cut to its last part, and without tokens.

    local: paths that are cut although they do not stand out from other text.
    """
    if isinstance(value, dict):
        return {k: without_secrets(v) if k in PROMPTS else without_paths(v, local) for k, v in value.items()}
    if isinstance(value, list):
        return [without_paths(item, local) for item in value]
    if not isinstance(value, str):
        return value
    for path in sorted((p for p in local if "/" in p or "\\" in p), key=len, reverse=True):
        value = value.replace(path, last_part(path))
    return masked(PATH.sub(lambda found: last_part(found[0]), value))


def last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def file_sha256(path: str | Path) -> str:
    digest = sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
