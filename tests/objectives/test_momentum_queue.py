"""ESimCSE: the golden values, the queue and the momentum encoder against a loop, and what goes with it."""

import copy

import numpy as np
import pytest
import torch
from family import objective_trainer
from golden import case_of, check
from tiny import save_tiny
from torch import nn

from hf_focalcse import build_loss, load_model
from hf_focalcse.errors import UserError
from hf_focalcse.objectives.momentum_queue import MomentumQueue, move


class Stub(nn.Module):
    """An encoder whose vectors are its input."""

    projection_use, pooler_name, augmentations = "none", "cls", ()

    def __init__(self, size, start=(0.0,)):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(start, dtype=torch.float64))
        self.projection_linear = nn.Linear(1, 1)
        self.size = self.dimensions = size

    def carry(self, objective):
        pass

    def max_length(self):
        return 512

    def get_embedding_dimension(self):
        return self.size

    def forward(self, input_ids, attention_mask):
        return input_ids


def batch_of(z1, z2, ids=None):
    views = torch.stack([z1, z2], 1)  # (B, V, D)
    ids = torch.arange(len(z1)) if ids is None else torch.tensor(ids)
    return {"input_ids": views, "attention_mask": torch.ones_like(views), "text_ids": ids, "seed": 0}


def stubbed(size, queue_size, loss="infonce", **more):
    objective, stub = MomentumQueue(build_loss(loss), queue_size=queue_size, **more), Stub(size)
    objective.attach(stub)
    return objective, stub


@pytest.mark.parametrize("number", range(3))
def test_golden_values(shared, number):
    inputs, settings, expected = case_of(shared, "esimcse", number)
    size, momentum = settings["queue_size"], settings["momentum"]
    objective, stub = stubbed(inputs["z1"].shape[1], size)
    filled = len(inputs["queue"])
    objective.queue[:filled], objective.queue_ids[:] = inputs["queue"], -1
    objective.filled.fill_(filled)
    z1, z2 = inputs["z1"].requires_grad_(), inputs["z2"].requires_grad_()
    value, pairs = objective.loss(stub, batch_of(z1, z2))
    check(objective.criterion.rows(pairs), expected["rows"])
    check(value, expected["loss"])
    value.backward()
    check(z1.grad, expected["grad_z1"])
    check(z2.grad, expected["grad_z2"])

    objective, stub = stubbed(inputs["queue_batches"].shape[2], size)
    for vectors, queue in zip(inputs["queue_batches"], expected["queue_after_each_step"], strict=True):
        objective.loss(stub, batch_of(vectors.requires_grad_(), vectors))
        objective.after_step(stub)
        check(objective.queue[: int(objective.filled)], queue)

    twin = Stub(1, inputs["ema_start"].tolist())
    for live, after in zip(inputs["live_parameters"], expected["ema_after_each_step"], strict=True):
        move(twin, Stub(1, live.tolist()), momentum)
        check(twin.weights, after)


def test_a_text_in_the_queue_is_not_its_own_negative():
    z = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for mask, shape in ((True, (4, 8)), (False, None)):
        objective, stub = stubbed(5, 8, mask_duplicates=mask)
        objective.loss(stub, batch_of(z.requires_grad_(), z, [1, 2, 3, 4]))
        objective.after_step(stub)
        _, pairs = objective.loss(stub, batch_of(z, z, [9, 3, 8, 7]))
        assert pairs.candidates.shape == (8, 5)
        if mask:
            assert pairs.excluded.shape == shape and pairs.excluded[:, 4:].nonzero().tolist() == [[1, 2]]
        else:
            assert pairs.excluded is None
    objective.loss(stub, batch_of(z, z))  # two batches before a step of the optimizer, and one that is only logged
    with torch.no_grad():
        objective.loss(stub, batch_of(z, z))
    objective.after_step(stub)
    assert int(objective.filled) == 8 and not objective._newest  # the two newest batches of four


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(save_tiny(tmp_path_factory.mktemp("queue") / "base"))


def test_training_equals_a_loop(base, tmp_path):
    """The candidates of every step, with a queue and a momentum encoder that are kept by hand."""
    trainer = objective_trainer(base, tmp_path, "momentum_queue", max_steps=5, learning_rate=0.05)
    objective, model = trainer.objective, trainer.model
    start = copy.deepcopy(objective.twin.state_dict())
    byhand = load_model(base, "cls", "always").eval()
    byhand.load_state_dict(start)
    seen, forward, after = [], objective.loss, objective.after_step
    rows = []

    def loss(of, batch):
        with torch.no_grad():
            rows.append(byhand(batch["input_ids"][:, 0], batch["attention_mask"][:, 0]))
        value, pairs = forward(of, batch)
        seen.append(pairs.candidates[4:].detach())
        return value, pairs

    def after_step(encoder):
        after(encoder)
        projection = {id(p) for p in encoder.projection_linear.parameters()}
        with torch.no_grad():
            for own, new in zip(byhand.parameters(), encoder.parameters(), strict=False):
                own.copy_(new if id(new) in projection else 0.5 * own + 0.5 * new)

    objective.loss, objective.after_step = loss, after_step
    trainer.train()
    assert len(seen) == 5 and len(seen[0]) == 0
    for step in range(1, 5):
        torch.testing.assert_close(seen[step], torch.cat(rows[max(step - 3, 0) : step]))
    moved = objective.twin.state_dict()
    assert all(not torch.equal(moved[name], start[name]) for name in start if "position_ids" not in name and
               "pooler" not in name and moved[name].dtype.is_floating_point)  # fmt: skip
    assert not [p for p in objective.twin.parameters() if p.requires_grad]
    trained = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in objective.twin.parameters()}
    assert trainer.step_memory.weights >= 2 * sum(p.numel() * 4 for p in model.parameters())


def test_what_does_not_go_is_refused(base, tmp_path):
    with pytest.raises(UserError, match="loss dclr compares with a frozen encoder, which has no vectors of the queue"):
        MomentumQueue(build_loss("dclr"), reference=load_model(base, "mean"))
    for settings, said in (({"queue_size": 0}, "queue_size is 0"), ({"momentum": 1.0}, "momentum is 1.0")):
        with pytest.raises(UserError, match=said):
            MomentumQueue(build_loss("focal"), **settings)
    with pytest.raises(UserError, match="ZeRO-3 shares them out; use ZeRO-2"):
        MomentumQueue(build_loss("focal")).check_engine("ZeRO-3")
    assert MomentumQueue(build_loss("focal")).config == {"queue_size": 160, "momentum": 0.995}


def test_it_is_described():
    said = MomentumQueue(build_loss("focal")).describe()
    assert said["name"] == "focal" and said["objective"] == "momentum_queue" and said["queue_size"] == 160
    assert "2109.04380" in said["paper"] and "hou2023focal" in said["citation"] and "wu2022esimcse" in said["citation"]
    assert np.all([part in said["formula"] for part in ("s_ii²", "momentum encoder")])
