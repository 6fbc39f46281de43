"""A trainer whose encoder is made anew for each run (``model_init``), and the search for hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import enable_full_determinism, set_seed

from ..errors import UserError, first_line
from ..runs.record import RunRecord
from .checks import check_compiled
from .given import take_model
from .pushing import PushingTrainer


class SearchingTrainer(PushingTrainer):
    """What `FocalCSETrainer` does about ``model_init`` and `hyperparameter_search`."""

    model_init: Any
    processing_class: Any
    dev: list[Any]
    scorer: Any
    record: RunRecord | None
    train_objective: Any  # the `Objective`
    named: str | None = None  # the name or folder that the encoder was loaded from
    hp_search_backend: Any = None
    _search_value: Any = None

    @property
    def objective(self) -> Any:
        """The `Objective` that is trained by; in a hyperparameter search, the value of the newest scoring, which
        Trainer keeps under this name."""
        return self.train_objective if self.hp_search_backend is None else self._search_value

    @objective.setter
    def objective(self, value: Any) -> None:
        if self.hp_search_backend is None:
            self.train_objective = value
        else:
            self._search_value = value

    def prepare_model(self, model: Any, args: Any) -> None:
        raise NotImplementedError

    # ---- the encoder

    def first_model(self, model: Any, model_init: Callable[..., Any] | None) -> Any:
        """The encoder to begin with: the one given, that of a name or folder, or what ``model_init`` makes.

        Raises:
            UserError: not exactly one of the two is given, or as for `take_model`.
        """
        if (model is None) == (model_init is None):
            what = "neither model nor model_init is" if model is None else "both model and model_init are"
            raise UserError(f"{what} given; give model='name or folder', an encoder of load_model, or model_init=…")
        if model_init is None:
            self.named = str(model) if isinstance(model, (str, Path)) else None
            return take_model(model, self.args.seed, self.train_objective.criterion)
        if not callable(model_init):
            raise UserError(f"model_init is {model_init!r}; it must be a function that returns an encoder or a name")
        enable_full_determinism(self.args.seed) if self.args.full_determinism else set_seed(self.args.seed)
        self.model_init = model_init
        return self._initial()

    def _initial(self, trial: Any = None) -> Any:
        try:
            made = super().call_model_init(trial)
        except RuntimeError as error:
            if not str(error).startswith("model_init should"):  # what transformers says of the function itself
                raise
            raise UserError(
                f"{first_line(error)}; it takes nothing or a trial, and returns an encoder or a name"
            ) from error
        return take_model(made, self.args.seed, self.train_objective.criterion)

    def call_model_init(self, trial: Any = None) -> Any:
        """A new encoder, made ready to be trained.

        Raises:
            UserError: the objective has state of its own, which would go on from the run before, or the new encoder
                reads other tokens than the first.
        """
        model = self._initial(trial)
        if self.train_objective.has_state():
            raise UserError(
                f"model_init makes a new encoder for each run, but {type(self.train_objective).__name__} would go on "
                "with what it learnt in the run before; make a new trainer for each run"
            )
        if model.tokenizer.get_vocab() != self.processing_class.get_vocab():
            raise UserError(
                "model_init returned an encoder whose tokenizer has another vocabulary than that of the first, by "
                "which the training text is read; make a trainer for each encoder"
            )
        self.prepare_model(model, self.args)
        check_compiled(model, self.accelerator)
        self.__dict__.pop("step_memory", None)
        return model

    # ---- the search

    def hyperparameter_search(  # type: ignore[override]
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], float] | None = None,
        n_trials: int = 20,
        direction: str | list[str] | None = None,
        backend: Any = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """As Trainer's; without ``compute_objective`` the score that chooses the best checkpoint is optimised.

        Afterwards `train` makes a new encoder, with the arguments of the last run: set those of the best one first.

        direction: "maximize" or "minimize"; None is what is better for that score.

        Raises:
            UserError: there is no way to make a new encoder, nothing to score, no backend, or a direction that would
                look for the worst score.
        """
        if self.model_init is None and self.named is None:
            raise UserError(
                "hyperparameter_search needs a new encoder for each run; give FocalCSETrainer(model_init=…), or the "
                "encoder's name as model='…'"
            )
        if not self.dev:
            raise UserError("hyperparameter_search has no score to compare runs by; give eval_dataset")
        metric, better = self.args.metric_for_best_model, "maximize" if self.args.greater_is_better else "minimize"
        if compute_objective is None:
            if direction not in (None, better):
                raise UserError(
                    f"direction is {direction!r}, which would look for the worst {metric}; leave direction out, or "
                    "give compute_objective"
                )
            compute_objective = lambda metrics: metrics[f"eval_{metric}"]  # noqa: E731
        self.model_init = self.model_init or (lambda: self.named)
        if self.model is not None:
            self.scorer.begin()
        try:
            return super().hyperparameter_search(
                hp_space, compute_objective, n_trials, direction or better, backend, hp_name, **kwargs
            )
        except RuntimeError as error:
            if "backend" not in str(error):  # what transformers says where none is installed
                raise
            raise UserError(
                "hyperparameter_search needs a backend that is not installed; pip install optuna"
            ) from error
        finally:
            self.hp_search_backend = None

    def begin_trial(self, trial: Any) -> None:
        """Forget what is of the run before."""
        if trial is not None:
            self.alarms.forget()
            self.record = None
