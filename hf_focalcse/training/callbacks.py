"""What happens between the steps of a run: its start, stop signals, measuring, the cost of scoring the dev set."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from ..compat import set_loss_since_log
from ..errors import Stopped, UserError
from ..evaluation.metrics import alignment, uniformity
from ..objectives.base import READ
from ..objectives.pairs import on_any_rank, rank
from .checkpoints import clear_stage
from .engines import check_wrapper
from .given import check_amount

RANK_SEED = 1_000_003  # between the dropout seeds of two ranks; Trainer seeds all alike, which gives equal masks
STOPPING = (signal.SIGTERM, signal.SIGINT)
REPEATED = 2.0  # seconds; launchers pass a signal on to processes that the terminal has signalled already
PAIRS, POSITIVES = 256, 128  # of the sample at most: those whose sentences are spread, those that belong together
SENTENCES = 256  # of the sample of training text
COST_LIMIT = 0.05  # of the run, that scoring should take at most


class StartOfTraining(TrainerCallback):
    """Checks the engine's wrapper, which exists from now on, gives each rank dropout masks of its own, restores the
    objective, and tells it when a step is over."""

    def __init__(self, trainer: Any):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer = self.trainer
        check_amount(trainer.train_dataset, args)
        check_wrapper(trainer.model_wrapped, trainer.accelerator, args)
        if args.process_index > 0:  # a resumed run gets the states of its generators afterwards
            torch.manual_seed(args.seed + RANK_SEED * args.process_index)
        if args.should_save:
            clear_stage(args.output_dir)
        trainer.accelerator.wait_for_everyone()
        trainer.rebase_best()
        trainer.restore_objective()
        if trainer.resumed_from is not None and trainer.loss_before:
            set_loss_since_log(trainer, *trainer.loss_before)
        trainer.scorer.cost.restart()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self.trainer.train_objective.after_step(self.trainer.encoder)
        self.trainer.scorer.cost.begin(state.global_step)
        # The last step is scored however few steps there are; older transformers do so only every eval_steps.
        if state.global_step >= state.max_steps and args.eval_strategy == IntervalStrategy.STEPS:
            control.should_evaluate = control.should_evaluate or args.eval_delay <= state.global_step
        return control


# ---- stop signals


class StopSignals(TrainerCallback):
    """A context in which the first signal asks for a checkpoint and an end, on all ranks at the same step.

    A second one, more than two seconds later, ends the process at once.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._since = 0.0
        self._stopping = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._receive) for number in STOPPING}
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if self.received is not None and kind is None:  # it came after the last step
            signal.raise_signal(self.received)

    def _receive(self, number: int, _frame: Any) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
            if rank() == 0:
                name = signal.Signals(number).name
                os.write(
                    2, f"{name}: saving a checkpoint after this step; send the signal again to stop at once\n".encode()
                )
        elif now - self._since > REPEATED:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if on_any_rank(self.received is not None, args.device):
            self._stopping = control.should_save = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._stopping:
            name = signal.Signals(self.received).name if self.received is not None else "a signal to another process"
            raise Stopped(
                f"stopped by {name} after step {state.global_step}, which is saved in {args.output_dir}"
                f"/checkpoint-{state.global_step}; go on with the same command and --resume_from_checkpoint last"
                if rank() == 0
                else ""
            )


# ---- measuring


class Measuring(TrainerCallback):
    """Logs what ``measure`` gives before the first step and after every ``steps`` steps."""

    def __init__(self, steps: int, measure: Callable[[], dict[str, float]], log: Callable[[dict[str, float]], None]):
        if steps < 1:
            raise UserError(f"measure_steps is {steps}; it must be at least 1, or left out to measure nothing")
        self.steps, self.measure, self.log = steps, measure, log

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:  # a resumed run has logged it
            self.log(self.measure())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.steps == 0:
            self.log(self.measure())


def measure_pairs(task: Any, encode: Callable[[list[str]], np.ndarray]) -> dict[str, float]:
    """Alignment and uniformity of a sample of a labelled set, embedded as for its scores.

    At most 768 sentences, where STS-B dev has 3,000. Positives are the pairs that evaluation takes for positives; for
    sets without such a rule, the fifth that people rated highest.
    """
    draw = np.random.default_rng(0)
    above = task.aligned_above
    positive = task.scores > above if above is not None else task.scores >= np.quantile(task.scores, 0.8)
    any_pair, together = (
        [task.pairs[i] for i in sorted(draw.permutation(rows)[:most])]
        for rows, most in ((np.arange(len(task.pairs)), PAIRS), (np.flatnonzero(positive), POSITIVES))
    )
    vectors = encode([text for pair in any_pair + together for text in (pair.sentence1, pair.sentence2)])
    spread, close = vectors[: 2 * len(any_pair)], vectors[2 * len(any_pair) :]
    found = {"measured_pairs/uniformity": uniformity(spread)}
    return found | ({"measured_pairs/alignment": alignment(close[::2], close[1::2])} if together else {})


def measure_views(
    model: Any, dataset: Any, collate: Callable[[list[Any]], dict[str, Tensor]], device: torch.device
) -> dict[str, float]:
    """Of two views of training sentences, as the loss sees them (with dropout and projection), without labels.

    Dropout is drawn from a separate seed, so that training goes on as if nothing had been measured.
    """
    rows = sorted(np.random.default_rng(0).permutation(len(dataset))[:SENTENCES].tolist())
    batch = collate([dataset[i] for i in rows])
    was_training = model.training
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        model.train()
        read = {name: batch[name].to(device) for name in READ if name in batch}
        views = model(**read)  # (B, V, D)
    model.train(was_training)
    first, second = views[:, :2].float().cpu().numpy().swapaxes(0, 1)
    return {"measured_views/alignment": alignment(first, second), "measured_views/uniformity": uniformity(first)}


# ---- the cost of the dev set


class DevCost:
    """Seconds of the scorings against those of the run, both from the end of the run's first step on.

    The first step is left out since it warms up, and the scoring before training since it happens once.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self.last = 0.0  # seconds of the newest scoring, in the run or before it
        self.restart()

    def restart(self) -> None:
        """A run is about to begin."""
        self._began: float | None = None
        self._first = 0
        self._scored = 0.0

    def begin(self, step: int) -> None:
        """``step`` of the run has ended; only the first call counts."""
        if self._began is None:
            self._began, self._first = self._clock(), step

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Time one scoring of the dev set."""
        started = self._clock()
        yield
        self.last = self._clock() - started
        if self._began is not None:
            self._scored += self.last

    def of_step(self, step: int) -> float | None:
        """Mean seconds of a step, with everything but the scoring; None before the second step."""
        if self._began is None or step <= self._first:
            return None
        return (self._clock() - self._began - self._scored) / (step - self._first)

    def share(self, step: int) -> float | None:
        """Of the run so far; None before the second step."""
        if self._began is None or step <= self._first:
            return None
        return self._scored / (self._clock() - self._began)

    def expected(self, step: int, every: float) -> float | None:
        """Of a run that scores every so many steps, by the newest scoring; None before there are both."""
        seconds = self.of_step(step)
        return None if seconds is None or not self.last else self.last / (self.last + every * seconds)

    def enough(self, step: int) -> int | None:
        """Steps between two scorings with which they take at most ``COST_LIMIT`` of the run."""
        seconds = self.of_step(step)
        return None if seconds is None else math.ceil(self.last * (1 - COST_LIMIT) / COST_LIMIT / seconds)
