"""What of `transformers.Trainer` has no meaning here: each parameter and method refuses in one sentence, with what to
do instead, where it would otherwise be ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any, NoReturn

from transformers import Trainer

from ..errors import UserError, suggest
from ..losses import LOSSES, settings_of

DEFAULT_LOSS = "focal"
PARAMETERS = {  # of the constructor
    "compute_loss_func": "the loss is computed over pairs of sentences; give loss=…, or an Objective as objective=…",
    "preprocess_logits_for_metrics": "evaluation has no logits; compute_metrics gets cosines and scores of pairs",
    "tokenizer": "it is called processing_class",
    "evaluator": "give tasks as eval_dataset=…, and a function of your own as compute_metrics=…",
}


def refuse_parameters(given: Mapping[str, Any], allowed: Any) -> None:
    """Refuse further keyword arguments of a trainer. allowed: the class whose constructor they were given to.

    Raises:
        UserError: there is one that is not None.
    """
    for name, value in given.items():
        if value is None and name in PARAMETERS:
            continue
        if name in PARAMETERS:
            raise UserError(f"{name} cannot be given: {PARAMETERS[name]}")
        names = [known for known in signature(allowed.__init__).parameters if known not in ("self", "further")]
        kind = next((kind for kind in (DEFAULT_LOSS, *LOSSES) if name in settings_of(LOSSES[kind])), None)
        if kind:
            raise UserError(f"{name} is a setting of the loss; give loss=build_loss({kind!r}, {name}={value!r})")
        near = suggest(name, names)
        raise UserError(f"{allowed.__name__} has no argument {name!r}{near}; it has {', '.join(names)}")


def refuse_ignore_keys(keys: Any, name: str = "ignore_keys") -> None:
    if keys is not None:
        raise UserError(f"{name} is {keys!r}, but an encoder's output has no keys: it is one vector; leave it out")


def word(choice: Any) -> str:
    """An enum of transformers as a command line gives it."""
    return str(getattr(choice, "value", choice))


@contextmanager
def refused_as(flag: str, remedy: str) -> Iterator[None]:
    """What transformers and torch refuse within it is a mistake in ``flag``."""
    try:
        yield
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{flag} cannot be used: {' '.join(str(error).split())}; {remedy}") from error


@contextmanager
def plain_errors_of_workers() -> Iterator[None]:
    """A refusal of a process that reads sentences, without the traceback that torch puts around it."""
    try:
        yield
    except UserError as error:
        mark = f"{UserError.__name__}: "
        if "Traceback" not in str(error) or mark not in str(error):
            raise
        raise UserError(str(error).rpartition(mark)[2].strip()) from None


class RefusingTrainer(Trainer):
    """Trainer's own loop over evaluation data, which encodes no sentence, refuses to run; and what cannot be made of
    the arguments is refused by their names."""

    args: Any

    def get_eval_dataloader(self, eval_dataset: Any = None) -> NoReturn:
        raise UserError("there is no data loader for evaluation: tasks encode each sentence once; call evaluate()")

    def get_test_dataloader(self, test_dataset: Any) -> NoReturn:
        raise UserError("there is no data loader for prediction: call predict(), or encode of the encoder")

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UserError("there is no evaluation loop over batches: call evaluate() for scores, predict() for vectors")

    def prediction_step(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UserError("there is no prediction step on a batch: call evaluate() for scores, predict() for vectors")

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        with refused_as(f"--optim {word(self.args.optim)}", "adamw_torch is the default"):
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        remedy = "give what it needs in --lr_scheduler_kwargs, or take linear, the default"
        with refused_as(f"--lr_scheduler_type {word(self.args.lr_scheduler_type)}", remedy):
            return super().create_scheduler(*args, **kwargs)
