"""No float64 on the device, since not every device has it (MPS has none): a mode refuses every tensor of it."""

import pytest
import torch
from tiny import CONFIGS, SENTENCES, record_mean, save_tiny
from tiny_training import TEXTS, make_trainer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_focalcse import build_loss
from hf_focalcse.data.views import Views
from hf_focalcse.encoder.augment import build_augmentations
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.losses import LOSSES


class NoDoubles(TorchDispatchMode):
    """Refuses float64, as MPS does, and counts what it looked at."""

    seen = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self.seen += 1
                if leaf.dtype in (torch.float64, torch.complex128):
                    raise TypeError(f"this device has no float64, but {function} makes it")
        return found


def test_the_mode_sees_what_it_should():
    numbers = torch.ones(2)
    for make in (
        numbers.double,
        lambda: torch.tensor([1.0], dtype=torch.float64),
        lambda: numbers.sum(dtype=torch.float64),
        lambda: torch.topk(numbers.new_ones(3, dtype=torch.float64), 1),
        lambda: numbers * torch.as_tensor(numbers.numpy().astype("float64")),
    ):
        with pytest.raises(TypeError, match="no float64"), NoDoubles():
            make()


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_step_with_every_loss_at_several_sizes(tmp_path, name):
    loss = build_loss(name, matryoshka_dims=[16, 8])
    model = load_model(str(save_tiny(tmp_path / "start")), "cls", dropout=0.1)
    frozen = (
        {"reference": load_model(str(record_mean(save_tiny(tmp_path / "frozen"))))} if loss.needs_reference else {}
    )
    trainer = make_trainer(tmp_path, model=model, loss=loss, **frozen)
    batch = trainer.data_collator([{"text": row["text"]} for row in TEXTS[:8]])
    optimizer = trainer.create_optimizer()
    trainer.model.train()
    with NoDoubles() as mode:
        value, pairs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
        value.backward()
        trainer.objective.diagnostics(pairs)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimizer.step()
        assert trainer.model.encode(SENTENCES).shape == (len(SENTENCES), 16)
    assert mode.seen > 500


@pytest.mark.parametrize("family", CONFIGS)
def test_a_step_of_every_family_and_augmentation(tmp_path, family):
    model = load_model(str(record_mean(save_tiny(tmp_path, family)))).train()
    batch = Views(model.tokenizer, 32)([{"text": text} for text in SENTENCES])
    rates = ("token_shuffle", "token_cutoff:0.2", "span_cutoff", "feature_cutoff") if family == "bert" else ()
    with NoDoubles():
        for name in (None, *rates):
            if name is not None:
                model.augmentations = build_augmentations([name])
            model(batch["input_ids"], batch["attention_mask"]).sum().backward()
        model.encode(SENTENCES)
