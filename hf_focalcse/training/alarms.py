"""What a run must say loudly: one alarm of each kind with its first and last step, for log, run.json and card."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from transformers.utils import logging

from ..errors import UserError

logger = logging.get_logger(__name__)

COLLAPSED_COSINE = 0.98  # mean cosine of different sentences above which all vectors point in one direction
NEARLY = 0.9  # such a cosine above which a loss at the end of a collapsed encoder is that of one
TO_THE_END = 0.9  # of the way from the loss of an untrained encoder to that of a collapsed one
# Of the loss of an untrained encoder, below which nothing is left to learn, since float32 knows no share of a softmax
# nearer to 1. Far above it an encoder still learns: all-MiniLM-L6-v2 gains at a loss of 1e-5, since Adam's steps do
# not become smaller with the gradient.
NEAR_ZERO = 1e-7
STILL = 0.02  # of the range of the loss, below its upper end
SETTLED = 20  # steps, or a fifth of the run, in which a loss may stay where it began
ALIKE = 0.9  # share of the negatives that a reference finds alike, above which it finds everything alike
ONE_COSINE = 0.005  # standard deviation of a reference's cosines below which it tells no sentences apart
NEVER = 10  # log lines in which a reference finds nothing alike

Logs = Mapping[str, float]


@dataclass
class Alarm:
    """One kind of alarm. first, last: steps; None where it is about no step."""

    message: str
    first: int | None = None
    last: int | None = None

    def __str__(self) -> str:
        if self.first is None:
            return self.message
        steps = f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"
        return f"{self.message} ({steps})"


class Alarms(list[str]):
    """The alarms of a run, in the order in which they were raised first; one of a kind, which is logged once."""

    def __init__(self) -> None:
        super().__init__()
        self._raised: dict[str, Alarm] = {}
        self._seen: dict[str, int] = {}  # kind -> log lines in a row that showed it

    def add(self, message: str, kind: str = "", step: int | None = None, last: int | None = None) -> None:
        """Log an alarm and keep it; of a ``kind`` that was raised before, only the last step is kept.

        kind: what the alarm is about; without one, the message itself. step, last: the steps that it is about.
        """
        known = self._raised.get(kind or message)
        if known is None:
            self._raised[kind or message] = alarm = Alarm(message, step, last or step)
            logger.warning("ALARM: %s", alarm)
        else:
            known.last = last or step
        self[:] = map(str, self._raised.values())

    def forget(self) -> None:
        """Another run begins."""
        self._raised, self._seen = {}, {}
        self.clear()

    def kept(self) -> dict[str, dict[str, Any]]:
        """For a checkpoint, so that a resumed run still has the alarms of its earlier parts."""
        return {kind: asdict(alarm) for kind, alarm in self._raised.items()}

    def restore(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Take back what `kept` gave, before those that were raised since."""
        self._raised = {kind: Alarm(**alarm) for kind, alarm in kept.items()} | self._raised
        self[:] = map(str, self._raised.values())

    def watch(self, logs: Logs, step: int, steps: int = 0) -> None:
        """Raise an alarm where a log line shows that the run collapses, learns nothing, or has nothing to learn.

        steps: of the whole run.

        Raises:
            UserError: the loss is NaN or infinite.
        """
        if not math.isfinite(logs["loss"]):
            raise UserError(
                f"the loss is {logs['loss']} at step {step}; lower --learning_rate, raise --temperature, or use "
                "--bf16 in place of --fp16"
            )
        settled = step >= max(SETTLED, steps // 5)
        for kind, lines, late, look in SIGNS:
            message = look(logs) if settled or not late else None
            self._seen[kind] = self._seen.get(kind, 0) + 1 if message else 0
            if message and self._seen[kind] >= lines:
                self.add(message, kind, step)


# ---- what a log line shows


def without_range(logs: Logs) -> Logs:
    """A log line of an objective whose loss has further terms, so that it does not move between these ends."""
    return {key: value for key, value in logs.items() if not key.startswith("loss_if_")}


def is_collapsed(logs: Logs) -> str | None:
    cosine, loss = logs.get("negative_cosine_mean", 0.0), logs["loss"]
    untrained, collapsed = logs.get("loss_if_untrained", math.inf), logs.get("loss_if_collapsed", math.nan)
    at_end = collapsed > 1.1 * untrained and loss > untrained + TO_THE_END * (collapsed - untrained)
    if cosine <= COLLAPSED_COSINE and not (at_end and logs.get("negative_cosine_mean", 1.0) > NEARLY):
        return None  # a loss as high with vectors that differ is that of positives which lie apart
    return (
        f"collapse: the mean cosine of different sentences is {cosine:.3f} and the loss {loss:.2f}, where "
        f"{collapsed:.2f} would be a full collapse; lower --learning_rate or raise --dropout, and see in the data "
        "report that the sentences differ and that the tokenizer can read them"
    )


def is_stuck(logs: Logs) -> str | None:
    if "loss_if_perfect" not in logs or "reference_cosine_mean" in logs:  # what a teacher adds has no such range
        return None
    perfect, untrained, loss = logs["loss_if_perfect"], logs["loss_if_untrained"], logs["loss"]
    if loss < untrained - STILL * (untrained - perfect):
        return None
    return (
        f"nothing is learnt: the loss is {loss:.3f}, and an encoder that tells no sentences apart has {untrained:.3f} "
        f"(a perfect one {perfect:.3f}); raise --learning_rate, and see that dropout or an --augmentation is on and "
        "that the sentences differ"
    )


def is_done(logs: Logs) -> str | None:
    if not abs(logs["loss"]) < NEAR_ZERO * logs.get("loss_if_untrained", 0.0):
        return None
    return (
        f"nothing is left to learn: the loss is {logs['loss']:.1e}, where an untrained encoder has "
        f"{logs['loss_if_untrained']:.2f}; raise --temperature or --per_device_train_batch_size, and where a "
        "reference removes negatives, raise --phi"
    )


def has_no_negatives(logs: Logs) -> str | None:
    if logs.get("negatives_per_anchor_mean") != 0:
        return None
    return (
        "no sentence of the batch has a negative, since all texts are equal or there is but one; nothing is learnt "
        "from it"
    )


def has_no_gradient(logs: Logs) -> str | None:
    norm = logs.get("grad_norm", 1.0)
    if math.isfinite(norm) and norm > 0:
        return None
    return (
        f"the norm of the gradient is {norm:g}: nothing is learnt; raise --temperature, or use --bf16 in place of "
        "--fp16"
    )


def finds_all_alike(logs: Logs) -> str | None:
    share, spread = logs.get("reference_alike_share", 0.0), logs.get("reference_cosine_std", 1.0)
    if share <= ALIKE and spread >= ONE_COSINE:
        return None
    found = f"finds {share:.0%} of the negatives alike, which do not count then" if share > ALIKE else (
        f"tells no sentences apart: its cosines differ by {spread:.4f} (standard deviation)"
    )  # fmt: skip
    return f"the reference {found}; raise --phi, give another --reference_pooler, or another --reference_model"


def finds_none_alike(logs: Logs) -> str | None:
    if logs.get("reference_alike_share") != 0:
        return None
    return (
        f"in {NEVER} log lines or more, the reference found no two sentences alike, so that it changed nothing; lower "
        "--phi, or leave the reference out"
    )


Sign = tuple[str, int, bool, Callable[[Logs], "str | None"]]
SIGNS: tuple[Sign, ...] = (  # kind, log lines in a row, whether only of a loss that had time to settle, what shows it
    ("collapse", 2, False, is_collapsed),
    ("upper end of the loss", 2, True, is_stuck),
    ("lower end of the loss", 2, False, is_done),
    ("no negatives", 1, False, has_no_negatives),
    ("norm of the gradient", 2, False, has_no_gradient),
    ("reference finds all alike", 1, False, finds_all_alike),
    ("reference finds none alike", NEVER, False, finds_none_alike),
)


# ---- settings


PUBLISHED = {  # setting -> what is far from anything published, below and above; what is published
    "learning_rate": (1e-6, 1e-3, "5e-6 to 5e-5 for whole encoders and 1e-4 to 5e-4 for LoRA"),
    "temperature": (0.01, 0.5, "0.02 to 0.1"),
    "m": (0.0, 1.0, "0.1 to 0.5"),
    "max_seq_length": (8, 512, "32 to 128"),
    "batch size of all processes": (4, 8192, "64 to 512, and 16 to 2,048 in ablations"),
}


def untrained_token(model: Any) -> Iterable[tuple[str, str]]:
    """(kind, message) where the embedding that the encoder leaves untrained is not that of the padding."""
    left, tokenizer = getattr(model.get_input_embeddings(), "padding_idx", None), model.tokenizer
    token = None if left in (None, *tokenizer.all_special_ids) else tokenizer.convert_ids_to_tokens(left)
    if token is not None:
        yield (
            "padding",
            (
                f"config.json of the encoder pads with token {left}, {token!r}, whose embedding gets no gradient, and "
                f"its tokenizer with token {tokenizer.pad_token_id}, {tokenizer.pad_token!r}; if that is a mistake, "
                "mend pad_token_id in config.json"
            ),
        )


def far_settings(settings: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """(kind, message) for each setting that is far from anything that was published."""
    for name, (least, most, published) in PUBLISHED.items():
        value = settings.get(name)
        if isinstance(value, (int, float)) and not least <= value <= most:
            yield (
                f"setting {name}",
                (f"{name} is {value:g}, far from anything published ({published}); see that this is what you want"),
            )
