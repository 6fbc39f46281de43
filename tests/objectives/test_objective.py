"""An objective with a queue, a second network and random numbers of its own, written here alone: it trains, is kept in
checkpoints, resumes bit for bit and never reaches the published encoder, without a line for it in the trainer."""

import copy
import dataclasses
import json
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from family import BUILD, EQUAL_VIEWS, MADE, kept_of, objective_trainer, save_generator
from rank_training import engines_by_weights, needs_deepspeed, needs_fsdp
from safetensors.torch import load_file
from tiny import SENTENCES, save_tiny
from torch import nn
from transformers import AutoModel, TrainerCallback

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model
from hf_focalcse.errors import UserError
from hf_focalcse.objectives import Objective
from hf_focalcse.objectives.pairs import gather_rows, make_pairs
from hf_focalcse.training.checkpoints import differences_of_run, find_checkpoint
from hf_focalcse.training.memory import estimate_step

TEXTS = [{"text": f"{a} {b}"} for a in SENTENCES for b in ("", "today", "the dog", "in a house")]


class QueueWithNetwork(Objective):
    """Past candidates as further negatives, a network with batch norm beside the encoder, noise of an own generator,
    and a momentum mean of the newest candidates."""

    def __init__(self, size=16, length=12):
        super().__init__()
        self.criterion = build_loss("focal")
        self.network = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size), nn.Linear(size, size))
        self.register_buffer("queue", torch.randn(length, size, generator=torch.Generator().manual_seed(1)))
        self.register_buffer("twin", torch.zeros(size))
        self.draws = torch.Generator().manual_seed(7)
        self.newest = None

    def loss(self, model, batch):
        embeddings = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        pairs = make_pairs(embeddings, batch["text_ids"], seed=batch["seed"])
        self.newest = gather_rows(pairs.candidates.detach() if pairs.weight is None else embeddings[:, 1].detach())
        pairs = dataclasses.replace(pairs, excluded=None, candidates=torch.cat([pairs.candidates, self.queue.clone()]))
        noise = torch.randn(embeddings[:, 0].shape, generator=self.draws)
        distance = (self.network(embeddings[:, 0] + 0.1 * noise) - embeddings[:, 1]).pow(2).mean()
        return self.criterion(pairs) + distance + 1e-3 * self.twin.sum(), pairs

    def after_step(self, model):
        self.queue.copy_(torch.cat([self.newest, self.queue])[: len(self.queue)])
        self.twin.lerp_(self.newest.mean(0), 0.1)

    def kept(self):
        return super().kept() | {"draws": self.draws.get_state()}

    def restore(self, kept):
        self.draws.set_state(kept["draws"])
        super().restore({name: value for name, value in kept.items() if name != "draws"})


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(base, folder, engine, resume=None, die_at=None, steps=20, objective=QueueWithNetwork):
    """Everything that is trained or kept, at the end of a run over two and a half epochs."""
    trainer = objective_trainer(
        base, folder, objective, engine, max_steps=steps, save_steps=7, save_strategy="steps", logging_steps=5
    )
    if die_at:
        trainer.add_callback(KillAt(die_at))
    trainer.train(resume_from_checkpoint=resume)
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped) or {}
    kept = kept_of(trainer.objective)
    trainer.save_whole(folder)
    return {name: value.detach().cpu().numpy().copy() for name, value in state.items()}, kept


def equal(one, other):
    return one.keys() == other.keys() and len(one) > 0 and all(np.array_equal(one[k], other[k]) for k in one)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = save_tiny(tmp_path_factory.mktemp("objective") / "base")
    save_generator(folder)
    return str(folder)


def check_resumes(ranks, base, tmp_path, world, engine, *objective):
    whole = ranks(world, train, base, tmp_path / "whole", engine, None, None, 20, *objective)
    cut = ranks(world, train, base, tmp_path / "cut", engine, None, random.randint(8, 19), 20, *objective)
    assert cut == [None] * world
    again = ranks(world, train, base, tmp_path / "cut", engine, "last", None, 20, *objective)
    assert equal(whole[0][0], again[0][0])
    for one, other in zip(whole, again, strict=True):  # buffers and generator of every rank
        assert equal(one[1], other[1]) or one[1] == other[1] == {}  # an objective may keep nothing
    return whole, tmp_path / "cut"


def check_network_is_trained(whole):
    moved = [name for name in whole[0][0] if "objective." in name and "network.0.weight" in name]
    assert moved, sorted(whole[0][0])  # it is trained
    torch.manual_seed(3)
    assert not np.array_equal(whole[0][0][moved[0]], QueueWithNetwork().network[0].weight.detach().numpy())


def test_one_process_resumes_bit_for_bit(ranks, base, tmp_path):
    check_network_is_trained(check_resumes(ranks, base, tmp_path, 1, "one")[0])


@engines_by_weights  # ZeRO-1 and 2 keep an objective in the same files as ZeRO-3
def test_ranks_resume_bit_for_bit(ranks, base, tmp_path, engine):
    check_network_is_trained(check_resumes(ranks, base, tmp_path, 2, engine)[0])


@pytest.mark.parametrize(("name", "engine"), [(name, engine) for name in MADE for engine in ("one", "DDP")])
def test_every_objective_resumes_and_is_not_published(ranks, base, tmp_path, name, engine):
    world = 1 if engine == "one" else 2
    _, folder = check_resumes(ranks, base, tmp_path, world, engine, name)
    for place in (folder, folder / "checkpoint-14"):
        names = {name.removeprefix("bert.") for name in load_file(place / "model.safetensors")}
        assert names == set(load_file(f"{base}/model.safetensors"))
        _, info = AutoModel.from_pretrained(place, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
    assert not list(folder.glob("objective*"))


class Gradients(TrainerCallback):
    """Those of the first step."""

    def __init__(self):
        self.found = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        named = model.named_parameters() if not self.found else ()
        self.found |= {f"gradient {n}": p.grad.numpy().copy() for n, p in named if p.grad is not None}


def end_of(base, folder, name, engine):
    """All weights and what is kept, after four steps in float64 (DeepSpeed has float32) without dropout, the last of
    them over fewer rows; and the gradients of the first, where they are not shared out."""
    name += EQUAL_VIEWS * (name + EQUAL_VIEWS in BUILD)
    trainer = objective_trainer(
        base, folder, name, engine, dropout=0.0, double=not engine.startswith("ZeRO"), texts=TEXTS[:29], optim="sgd",
        max_grad_norm=0.0, learning_rate=0.01, lr_scheduler_type="constant",
        per_device_train_batch_size=8 if engine == "one" else 4,
    )  # fmt: skip
    gradients = Gradients()
    if engine in ("one", "DDP"):
        trainer.add_callback(gradients)
    trainer.train()
    assert trainer.state.global_step == 4
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped) or {}
    weights = {name: value.detach().numpy().copy() for name, value in state.items()}
    return weights | kept_of(trainer.objective) | gradients.found


MARKS = {"FSDP2": needs_fsdp, "ZeRO-2": needs_deepspeed, "ZeRO-3": needs_deepspeed}
SHARING = [pytest.param(engine, marks=marks) for engine, marks in MARKS.items()]


@pytest.mark.parametrize("engine", ["DDP", *SHARING])
@pytest.mark.parametrize("name", MADE)
def test_two_processes_equal_one(ranks, tmp_path, name, engine):
    base = str(save_tiny(tmp_path / "base", initializer_range=0.4))  # vectors that differ
    save_generator(base)
    one = ranks(1, end_of, base, tmp_path / "1", name, "one")[0]
    if (name, engine) == ("momentum_queue", "ZeRO-3"):
        with pytest.raises(RuntimeError, match="momentum_queue needs whole weights in each process"):
            ranks(2, end_of, base, tmp_path / "2", name, engine)
        return
    found = ranks(2, end_of, base, tmp_path / "2", name, engine)[0]
    one = one if engine == "DDP" else {key: of for key, of in one.items() if not key.startswith("gradient ")}
    assert found.keys() == one.keys()

    apart = {key: float(np.abs(found[key] - one[key]).max()) for key in one}
    of_gradients = [size for key, size in apart.items() if key.startswith("gradient ")]
    assert len(of_gradients) > 30 or engine != "DDP"
    largest = max(apart.values())
    first = f"; of a gradient entry {max(of_gradients):.1e}" if of_gradients else ""
    print(f"{name}, {engine}: largest difference {largest:.1e}{first}")
    assert largest <= (1e-4 if engine.startswith("ZeRO") else 1e-12)


@pytest.mark.parametrize("name", MADE)
def test_one_step_moves_what_is_trained_and_nothing_else(base, tmp_path, name):
    trainer = objective_trainer(base, tmp_path, name, max_steps=1, per_device_train_batch_size=16)
    momentum = [] if not hasattr(trainer.objective, "twin") else [trainer.objective.twin]
    frozen = [one for one in getattr(trainer.objective, "beside", list)() if one not in momentum]
    before = {key: p.detach().clone() for key, p in trainer.model.named_parameters()}
    others = [[p.clone() for p in one.parameters()] for one in (*frozen, *momentum)]
    memory, found = trainer.objective.memory(), trainer.step_memory
    kept = sum(p.numel() * p.element_size() for of in others for p in of)
    plain = estimate_step(trainer.model, trainer.loss, 16, 32, views=trainer.views)
    assert memory["frozen"] == kept == found.weights - plain.weights
    assert found.row >= plain.row * memory["passes"] and (found.row > plain.row) == (name != "momentum_queue")
    trainer.train()
    moved = {key for key, p in trainer.model.named_parameters() if not p.equal(before[key])}
    trained = {key for key, p in trainer.model.named_parameters() if p.requires_grad}
    assert {key for key in trained - moved if "key.bias" not in key} == set() == moved - trained
    held = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in trainer.model.parameters() if p.requires_grad}
    for network, old in zip((*frozen, *momentum), others, strict=True):
        still = [new.equal(one) for new, one in zip(network.parameters(), old, strict=True)]
        assert all(still) if network in frozen else not all(still)  # the momentum encoder follows


def test_it_is_in_checkpoints_and_never_published(ranks, base, tmp_path):
    ranks(1, train, base, tmp_path / "run", "one", None, None, 7)
    checkpoint = load_file(tmp_path / "run/checkpoint-7/objective-0.safetensors")
    assert {"queue", "twin", "draws", "network.0.weight", "network.1.running_mean"} <= checkpoint.keys()
    assert not list((tmp_path / "run").glob("objective*"))
    for folder in (tmp_path / "run", tmp_path / "run/checkpoint-7"):
        assert not [name for name in load_file(folder / "model.safetensors") if "objective" in name]
        _, info = AutoModel.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]


def test_the_queue_matters(ranks, base, tmp_path):
    """The test above can fail: without what is kept, a resumed run is another."""
    whole = ranks(1, train, base, tmp_path / "whole", "one")[0]
    ranks(1, train, base, tmp_path / "cut", "one", None, 13)
    changed = tmp_path / "cut/checkpoint-7/objective-0.safetensors"
    from safetensors.torch import save_file

    kept = load_file(changed)
    kept["queue"] = torch.zeros_like(kept["queue"])
    save_file(kept, changed)
    from hf_focalcse.training import checkpoints

    assert "objective-0.safetensors" in str(checkpoints.damage(changed.parent))  # and a changed file is found
    whole_again = ranks(1, train_unchecked, base, tmp_path / "cut", "one")[0]
    assert not equal(whole[0], whole_again[0])


def train_unchecked(base, folder, engine):
    from hf_focalcse.training import checkpoints

    checkpoints.damage = lambda checkpoint: None
    return train(base, folder, engine, "last")


def test_a_checkpoint_of_another_objective_is_refused(ranks, base, tmp_path):
    ranks(1, train, base, tmp_path / "run", "one", None, None, 7)
    checkpoint = find_checkpoint(tmp_path / "run", "last")
    run = checkpoint.run | {"objective": "Contrastive"}
    assert differences_of_run(checkpoint, run) == ["objective was 'QueueWithNetwork' and is 'Contrastive'"]
    unnamed = dataclasses.replace(checkpoint, run={k: v for k, v in checkpoint.run.items() if k != "objective"})
    assert differences_of_run(unnamed, run) == []  # of version 0.1, which knew the contrastive one alone
    pooled = checkpoint.run | {"pooler": "mean"}
    assert differences_of_run(checkpoint, pooled) == ["--pooler was 'cls' and is 'mean'"]
    manifest = Path(checkpoint.path) / "checkpoint.json"  # version 0.1 named the pooler in the config alone
    content = json.loads(manifest.read_text())
    assert content["run"]["pooler"] == "cls"
    manifest.write_text(json.dumps(content | {"run": {k: v for k, v in content["run"].items() if k != "pooler"}}))
    older = find_checkpoint(tmp_path / "run", "last")
    assert differences_of_run(older, pooled) == ["--pooler was 'cls' and is 'mean'"]


class Momentum(Objective):
    """Everything it keeps is made when the encoder is there."""

    def attach(self, model, autocast=None):
        self.twin = copy.deepcopy(model.encoder).requires_grad_(False)
        self.head = nn.Linear(16, 16)

    def loss(self, model, batch):
        embeddings = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        with torch.no_grad():
            target = self.twin(batch["input_ids"][:, 0], batch["attention_mask"][:, 0]).last_hidden_state[:, 0]
        return (self.head(embeddings[:, 0]) - target).pow(2).mean(), None

    def after_step(self, model):
        with torch.no_grad():
            for own, new in zip(self.twin.parameters(), model.encoder.parameters(), strict=True):
                own.lerp_(new, 0.5)


def of_one_process(base, folder, **arguments):
    args = FocalCSETrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True, disable_tqdm=True,
        report_to="none", eval_strategy="no", load_best_model_at_end=False,
        **{"max_steps": 2, "save_strategy": "no"} | arguments,
    )  # fmt: skip
    return load_model(base, "cls", dropout=0.1), args


def test_what_attach_makes_is_trained_and_follows(tmp_path, base):
    model, args = of_one_process(base, tmp_path)
    trainer = FocalCSETrainer(model, args, train_dataset=TEXTS, objective=Momentum())
    start = {name: value.clone() for name, value in trainer.objective.state_dict().items()}
    trainer.train()
    moved = {name for name, value in trainer.objective.state_dict().items() if not torch.equal(value, start[name])}
    assert "head.weight" in moved and any(name.startswith("twin.") for name in moved)
    plain = FocalCSETrainer(model, args, build_loss("focal"), TEXTS)  # the next trainer of the same encoder
    assert not [name for name, _ in plain.model.named_parameters() if name.startswith("objective.")]
    assert plain.parameters_of_encoder() == sum(p.numel() for p in model.parameters())
    plain.train()


def test_a_second_training_does_not_go_back_to_the_checkpoint(tmp_path, base):
    model, args = of_one_process(base, tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    FocalCSETrainer(model, args, train_dataset=TEXTS, objective=QueueWithNetwork()).train()
    model, args = of_one_process(base, tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    trainer = FocalCSETrainer(model, args, train_dataset=TEXTS, objective=QueueWithNetwork())
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    queue = trainer.objective.queue.clone()
    trainer.restore_objective()
    assert not torch.equal(queue, trainer.objective.queue)  # what is restored is the checkpoint's
    trainer.objective.queue.copy_(queue)
    trainer.objective.after_step = lambda model: None
    trainer.train()
    assert torch.equal(queue, trainer.objective.queue)


def test_an_objective_takes_the_place_of_a_loss(tmp_path, base):
    args = FocalCSETrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    model = load_model(base, "cls", dropout=0.1)
    with pytest.raises(UserError, match="loss cannot be given together with an objective"):
        FocalCSETrainer(model, args, build_loss("focal"), TEXTS, objective=QueueWithNetwork())
    assert FocalCSETrainer(model, args, train_dataset=TEXTS).loss.name == "focal"
