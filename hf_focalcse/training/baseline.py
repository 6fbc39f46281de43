"""The encoder before the first step: as it was published and, where a run pools it otherwise, as training starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..encoder.recorded import Pooling, pooled_as
from ..evaluation.identity import as_embedded
from ..runs.record import AS_PUBLISHED
from ..runs.scores import Results


@dataclass(frozen=True)
class Before:
    """What the dev tasks gave before the first step.

    published: with the pooling and the prompt or template that the checkpoint records; None where it records no
    pooling. start: with those of the run, without a projection that nothing has trained yet; None where that embeds as
    published.
    """

    published: Results | None = None
    start: Results | None = None

    @property
    def baseline(self) -> Results | None:
        """What the run is compared with: the encoder as published, else as training starts from it."""
        return self.published or self.start

    def name(self, start: str) -> str:
        """What `baseline` is of, for tables and sentences; start: what the encoder is called that training starts
        from."""
        return AS_PUBLISHED if self.published else start


def score_before(model: Any, score: Callable[[], Results]) -> Before:
    """Score ``model`` before the first step; ``score`` gives the results of whatever it then embeds as."""
    published, start = published_pooling(model), start_pooling(model)
    with pooled_as(model, published or start):
        found = score()
    if published is None:
        return Before(start=found)
    if embeds_alike(published, start):
        return Before(found)
    with pooled_as(model, start):
        return Before(found, score())


def start_pooling(model: Any) -> Pooling:
    """How the encoder embeds when training starts, without a projection that nothing has trained yet."""
    untrained = model.projection_use == "always" and model.projection_is_random
    template = "" if model.template is None else model.template.name
    use = "training" if untrained else model.projection_use
    return Pooling(model.pooler_name, use, prompt=model.prompt, template=template)


def published_pooling(model: Any) -> Pooling | None:
    """How the encoder was published; None where nothing records it, or where the projection that it embeds through was
    drawn anew."""
    said: Pooling | None = model.published
    lost = said is not None and said.projection == "always" and model.projection_is_random
    return None if lost else said


def embeds_alike(one: Pooling, other: Pooling) -> bool:
    """Whether sentences get the same vectors."""
    return pools_alike(one, other) and reads_alike(one, other)


def pools_alike(one: Pooling, other: Pooling) -> bool:
    """Whether tokens are pooled alike; a projection that only training uses makes no difference."""
    return as_embedded(one.pooler, one.projection) == as_embedded(other.pooler, other.projection)


def reads_alike(one: Pooling, other: Pooling) -> bool:
    """Whether the same stands before and around every text; a record that does not say changes nothing."""
    of = ((one.prompt, other.prompt), (one.template, other.template))
    return all(a is None or a == b for a, b in of)


def departures(model: Any) -> Iterator[str]:
    """A loud sentence on each way in which training does not start from the encoder as published."""
    published, start = published_pooling(model), start_pooling(model)
    if published is None:
        return
    if not pools_alike(published, start):
        yield (
            f"as published the encoder pools by {published.pooler} ({published.source}), but it is trained with "
            f"pooler {start.pooler}: training starts from vectors for which the encoder was not made, and is compared "
            "with the encoder as published; leave the pooler out to start from that"
        )
    if not reads_alike(published, start):
        yield (
            f"as published the encoder reads a text with {_said(published)}, but it is trained with {_said(start)}, "
            "and is compared with the encoder as published"
        )


def _said(pooling: Pooling) -> str:
    if pooling.template:
        return f"the template {pooling.template!r}"
    return f"the prompt {pooling.prompt!r}" if pooling.prompt else "no prompt"
