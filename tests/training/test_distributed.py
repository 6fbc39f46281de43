"""Many processes give the gradient, the scores and the weights of one: forked gloo ranks against one process."""

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_training import TEXTS, engines, engines_by_weights, make_trainer, weights, write_pairs
from tiny import save_tiny
from torch.utils.data import SequentialSampler

from hf_focalcse import build_loss, losses
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import read_pairs
from hf_focalcse.losses import LOSSES, Pairs
from hf_focalcse.objectives.pairs import gather_rows, make_pairs


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Weights so large that the gradient is: the vectors of different sentences differ."""
    return str(save_tiny(tmp_path_factory.mktemp("distributed") / "base", initializer_range=0.4))


@pytest.fixture(scope="module")
def alone(ranks, base, tmp_path_factory):
    """Gradients of one process with the whole batch: {accumulation steps: {loss: gradient}}."""
    folder, losses = tmp_path_factory.mktemp("alone"), ["focal", "dclr"]
    return {
        steps: dict(zip(losses, ranks(1, gradients, base, folder, "one", losses, 8, steps)[0], strict=True))
        for steps in (1, 2)
    }


# ---- what a rank does


def without_dropout(model) -> None:
    """Dropout off whatever Trainer says, though the trainer wants a rate above 0 to start."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    model.config.attention_probs_dropout_prob = 0.0


def gradient(base, folder, engine="DDP", loss="focal", batch=8, accumulation=1, chunk=None, double=False,
             texts=TEXTS, sequential=True, simcse=False, **arguments):  # fmt: skip
    """The gradient of one step as the weights' change by SGD at learning rate 1, by transformers' own loop."""
    trainer = make_trainer(
        base, folder, engine, loss, chunk=chunk, double=double, texts=texts, max_grad_norm=0.0, optim="sgd",
        learning_rate=1.0, lr_scheduler_type="constant", per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation, **arguments,
    )  # fmt: skip
    without_dropout(trainer.model)
    before = {k: v.detach().cpu().numpy().copy() for k, v in trainer.model.state_dict().items()}
    if simcse:
        import hf_focalcse.objectives.contrastive

        hf_focalcse.objectives.contrastive.make_pairs = simcse_pairs
    if sequential:
        trainer._get_train_sampler = lambda *_: SequentialSampler(trainer.train_dataset)
    trainer.train()
    after = weights(trainer)
    return {name: before[name] - after[name] for name in after if before[name].dtype.kind == "f"}


def gradients(base, folder, engine, losses, *args):
    return [gradient(base, folder, engine, loss, *args) for loss in losses]


def simcse_pairs(embeddings, text_ids=None, *_, **__):
    """As the public scripts gather: no gradient for remote rows, the loss of the whole batch on every rank."""
    if dist.is_initialized():
        parts = [torch.empty_like(embeddings) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, embeddings.detach().contiguous())
        parts[dist.get_rank()] = embeddings
        embeddings = torch.cat(parts)
        text_ids = None if text_ids is None else gather_rows(text_ids)
    excluded = None if text_ids is None else text_ids.unsqueeze(1) == text_ids.unsqueeze(0)
    return Pairs(embeddings[:, 0], embeddings[:, 1], torch.arange(len(embeddings)), excluded)


def largest(one: dict, other: dict) -> float:
    assert one.keys() == other.keys() and one
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


# ---- the gradient


def test_ddp_gradient_is_that_of_one_process_in_float64(ranks, base, tmp_path):
    losses = [*sorted(LOSSES), *(build_loss(loss, matryoshka_dims=[16, 8, 3]) for loss in ("focal", "dclr"))]
    one = ranks(1, gradients, base, tmp_path / "1", "one", losses, 8, 1, None, True)[0]
    sizes = {loss: max(np.abs(g).max() for g in of.values()) for loss, of in zip(losses, one, strict=True)}
    print("largest gradient:", {loss: f"{size:.2g}" for loss, size in sizes.items()})
    assert min(sizes.values()) > 0.005
    for world, chunk in ((2, None), (2, 3), (4, None), (4, 3)):
        several = ranks(world, gradients, base, tmp_path / "n", "DDP", losses, 8 // world, 1, chunk, True)
        for i, loss in enumerate(losses):
            difference = max(largest(one[i], rank[i]) for rank in several)
            print(f"float64 DDP {world}x{8 // world} chunk {chunk} {loss}: {difference:.1e}")
            assert difference <= 1e-12


# A loss sees pairs, an engine sees gradients: all losses are compared under DDP in float64 above. Here each engine is
# tried with the default loss, and with one that has a second, frozen encoder, which the engine must leave alone.
CELLS = [  # ranks, chunk, accumulation, names of losses
    (2, None, 1, ["focal", "dclr"]),
    (2, 3, 1, ["focal"]),
    (2, None, 2, ["focal"]),
    (4, 3, 2, ["focal"]),
]


@engines
def test_gradient_is_that_of_one_process(ranks, alone, base, tmp_path, engine):
    for world, chunk, accumulation, names in CELLS:
        several = ranks(world, gradients, base, tmp_path / "n", engine, names, 8 // world, accumulation, chunk)[0]
        for loss, found in zip(names, several, strict=True):
            difference = largest(alone[accumulation][loss], found)
            print(
                f"float32 {engine} {world}x{8 // world} chunk {chunk} accumulation {accumulation} {loss}: "
                f"{difference:.1e}"
            )
            assert difference <= 5e-6


@pytest.mark.parametrize("world", [2, 4])
def test_the_gather_of_the_public_scripts_gives_a_fraction(ranks, base, tmp_path, world):
    """Exactly 1/W: Adam hides it, the clipping of gradients, weight decay and eps do not."""
    one = ranks(1, gradient, base, tmp_path / "1", "one", "focal", 8, 1, None, True)[0]
    public = ranks(world, simcse_gradient, base, tmp_path / "n", 8 // world)[0]
    print(f"SimCSE's gather {world}x{8 // world}: off by {largest(one, public):.1e}, "
          f"times {world}: {largest(one, {k: v * world for k, v in public.items()}):.1e}")  # fmt: skip
    assert largest(one, public) > 0.5
    assert largest(one, {name: value * world for name, value in public.items()}) <= 1e-12


def simcse_gradient(base, folder, batch):
    return gradient(base, folder, "DDP", "focal", batch, 1, None, True, simcse=True)


def uneven(base, folder, engine, batch, chunk, double, count):
    """Two steps of shuffled sentences, the second of what is left."""
    return gradient(
        base, folder, engine, "focal", batch, 1, chunk, double, texts=TEXTS[:count], sequential=False,
        dataloader_drop_last=False, max_steps=2,
    )  # fmt: skip


@pytest.mark.parametrize("count", [13, 12, 9])  # the last batch: 4 + 1, 4 + 0, 1 + 0 sentences
def test_an_uneven_last_batch_is_exact(ranks, base, tmp_path, count):
    one = ranks(1, uneven, base, tmp_path / "1", "one", 8, None, True, count)[0]
    several = ranks(2, uneven, base, tmp_path / "n", "DDP", 4, 3, True, count)
    differences = [largest(one, rank) for rank in several]
    print(f"uneven, {count} sentences: {max(differences):.1e}")
    assert max(differences) <= 1e-11 and largest(*several) == 0


@engines_by_weights
def test_a_rank_without_sentences_does_not_hang(ranks, base, tmp_path, engine):
    one = ranks(1, uneven, base, tmp_path / "1", "one", 8, None, False, 12)[0]
    several = ranks(2, uneven, base, tmp_path / "n", engine, 4, 3, False, 12)
    print(f"{engine}, 4 + 0 sentences: {largest(one, several[0]):.1e}")
    assert largest(one, several[0]) <= 2e-3  # two steps at learning rate 1 magnify rounding; float64 is exact above


# ---- pairs


def pairs_of(sizes, negatives="global", cells=losses.base.BLOCK_CELLS):
    """Pairs, loss gradient and all of a rank that has sizes[rank] rows of one batch; the loss in blocks."""
    losses.base.BLOCK_CELLS = cells
    rank = int(os.environ.get("RANK", 0))
    if len(sizes) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(sum(sizes), 3, 5, generator=generator, dtype=torch.float64)
    frozen = torch.randn(sum(sizes), 4, generator=generator, dtype=torch.float64)
    ids = torch.arange(sum(sizes)) % 4  # rows i and i + 4 have equal texts
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    z = whole[own].clone().requires_grad_()
    two = make_pairs(z[:, :2], ids[own], frozen[own], negatives, seed=7)
    hard = make_pairs(z, ids[own], negatives=negatives)
    texts = torch.stack([ids, torch.arange(sum(sizes)) + 10, ids + 20], 1)  # of anchors, positives, hard negatives
    weighted = make_pairs(z, texts[own], negatives=negatives, hard_negative_weight=1.5)
    loss = build_loss("focal")(two) + build_loss("infonce")(hard) + build_loss("focal")(weighted)
    loss.backward()
    masks = {"excluded": two.excluded[:], "hard": hard.negative_mask(), "reference": two.reference}
    masks["weighted"] = weighted.negative_mask()
    return {k: v.numpy() for k, v in masks.items()} | {
        "gradient": z.grad.numpy(),
        "loss": loss.item(),
        "seed": two.seed,
    }


@pytest.mark.parametrize(
    ("sizes", "cells"), [([4, 4], None), ([4, 4], 16), ([5, 1], None), ([6, 0], 1), ([0, 6], None), ([3, 0, 2], 5)]
)
def test_pairs_of_all_ranks_are_those_of_one_process(ranks, sizes, cells):
    one = ranks(1, pairs_of, [sum(sizes)])[0]
    several = ranks(len(sizes), pairs_of, sizes, "global", *([cells] if cells else []))
    for name in ("excluded", "hard", "reference", "weighted"):
        together = np.concatenate([rank[name] for rank in several])
        np.testing.assert_allclose(together.astype(float), one[name].astype(float), atol=1e-15)
    # DDP averages: the mean over ranks of what reached their rows is the gradient of the whole loss
    got = np.concatenate([rank["gradient"] for rank in several]) / len(sizes)
    np.testing.assert_allclose(got, one["gradient"], atol=1e-15)
    assert np.mean([rank["loss"] for rank in several]) == pytest.approx(one["loss"], abs=1e-14)
    assert {rank["seed"] for rank in several} == {7}


def test_local_negatives_stay_local(ranks):
    halves = ranks(2, pairs_of, [4, 4], "local")
    assert [half["hard"].shape for half in halves] == [(4, 8), (4, 8)]
    with pytest.raises(UserError, match="negatives is 'all'; it must be one of global, local"):
        make_pairs(torch.zeros(2, 2, 3), negatives="all")


def symmetric(base, folder, negatives):
    trainer = make_trainer(base, folder, loss=build_loss("focal", symmetric=True), settings={"negatives": negatives})
    try:
        trainer.train()
    except UserError as error:
        return str(error)
    return [line["negatives_per_anchor_mean"] for line in trainer.state.log_history if "loss" in line]


def test_symmetric_is_refused_across_ranks_with_the_remedy(ranks, base, tmp_path):
    assert all("--negatives local" in said for said in ranks(2, symmetric, base, tmp_path, "global"))
    assert ranks(2, symmetric, base, tmp_path, "local") == [[7], [7]]


# ---- noise and data order


def observe(base, folder, engine, batch):
    """What each rank sees in four steps: dropout masks, text ids, seeds for the losses, negatives per anchor."""
    trainer = make_trainer(base, folder, engine, per_device_train_batch_size=batch, max_steps=2,
                           gradient_accumulation_steps=2)  # fmt: skip
    seen = {"masks": [], "ids": [], "seeds": []}
    forward = trainer.loss.forward

    def watch(pairs):
        if pairs.seed:  # else: a reference value for the log
            seen["seeds"].append(pairs.seed)
        return forward(pairs)

    compute = trainer.compute_loss

    def watch_inputs(model, inputs, *args, **kwargs):
        seen["ids"].append(inputs["text_ids"].tolist())
        same = torch.full((*inputs["input_ids"].shape[:2], 6), 7)  # equal sentences: they differ by dropout alone
        equal = inputs | {"input_ids": same, "attention_mask": torch.ones_like(same)}
        loss, pairs = compute(model, equal, return_outputs=True)
        views = pairs.anchors[0], pairs.candidates[pairs.targets[0]]
        seen["masks"].append([view.detach().float().sum().item() for view in views])
        return loss

    trainer.loss.forward, trainer.compute_loss = watch, watch_inputs
    trainer.train()
    logs = [line for line in trainer.state.log_history if "loss" in line]
    return seen | {"negatives": [line["negatives_per_anchor_mean"] for line in logs]}


@engines_by_weights
def test_ranks_differ_in_dropout_and_agree_in_order_and_noise_seeds(ranks, base, tmp_path, engine):
    one = ranks(1, observe, base, tmp_path / "1", "one", 8)[0]
    first, second = ranks(2, observe, base, tmp_path / "2", engine, 4)
    assert first["masks"] != second["masks"] and first["masks"][0] != first["masks"][1]
    assert [a + b for a, b in zip(first["ids"], second["ids"], strict=True)] == one["ids"]
    assert first["seeds"] == second["seeds"] == one["seeds"] and len(set(one["seeds"])) == 4
    assert first["negatives"] == one["negatives"] == [7, 7]


# ---- evaluation


def score(base, folder, engine, pairs):
    trainer = make_trainer(base, folder, engine, dev=[read_pairs(pairs)], eval_strategy="steps", eval_steps=1,
                           per_device_eval_batch_size=3, max_steps=2)  # fmt: skip
    before = trainer.score_baseline()
    trainer.train()
    name = next(n for n in before if n.endswith("all/spearman"))
    found = [line[f"eval_{name}"] for line in trainer.state.log_history if f"eval_{name}" in line]
    (cosines,) = trainer.scorer.before.start.pairs.values()  # what an interval is computed from
    return before[name], found, cosines.tolist()


@engines_by_weights
def test_every_rank_has_the_same_score(ranks, base, tmp_path, engine):
    graded = write_pairs(tmp_path / "graded.tsv", 8)
    one = ranks(1, score, base, tmp_path / "1", "one", graded)[0]
    first, second = ranks(2, score, base, tmp_path / "2", engine, graded)
    assert first == second  # to the last bit
    assert first[0] == pytest.approx(one[0], abs=0.05) and len(first[1]) == 2


def test_fewer_sentences_than_ranks(ranks, base, tmp_path):
    few = write_pairs(tmp_path / "few.tsv", 3)
    scores = ranks(4, score, base, tmp_path / "4", "DDP", few)
    assert scores[0] == scores[1] == scores[2] == scores[3]
    assert scores[0][0] == pytest.approx(ranks(1, score, base, tmp_path / "1", "one", few)[0][0], abs=1e-4)
