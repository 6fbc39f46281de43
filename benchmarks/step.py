"""Seconds of a training step: ours, sentence-transformers' and SimCSE's, and of the step's matrix products alone.

python -m benchmarks.step --train_file sentences.txt --batch 64 --turns 7

A step is what training does: tokenise, forward, loss, backward, AdamW. All have the same weights, batches, [CLS] with
Linear and tanh, and InfoNCE; without dropout their losses must agree before anything is timed. The matrix products are
those of the encoder on unpadded tokens, forward and backward, the attention's among them, in the same shapes: of all
layers as a whole, and those that our step makes, which of the last layer computes only what [CLS] needs.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer, BertConfig, BertModel, set_seed

from benchmarks.peers import SentenceTransformers, SimCSE
from benchmarks.ratios import interleave, machine, sentences_of, table, write
from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model
from hf_focalcse.data.views import tokenize
from hf_focalcse.encoder.packing import Packed
from hf_focalcse.quickstart import CORPUS, encoder_path

AGREE = 2e-4  # relative, between losses without dropout in float32
OURS, PRODUCTS, OWN = "ours", "matrix products, unpadded", "those that our step makes"


def make_ours(model: Any, folder: str, options: argparse.Namespace, **settings: Any) -> Callable[[Sequence[str]], Any]:
    """One step of our trainer on a list of texts."""
    model = copy.deepcopy(model)
    for name, value in settings.items():
        setattr(model, name, value)
    args = FocalCSETrainingArguments(
        output_dir=folder, per_device_train_batch_size=options.batch, eval_strategy="no", save_strategy="no",
        load_best_model_at_end=False, use_cpu=options.device == "cpu", bf16=options.bf16, disable_tqdm=True,
        torch_compile=options.torch_compile,
    )  # fmt: skip
    trainer = FocalCSETrainer(
        model, args, build_loss("infonce"), [{"text": "a"}], mask_duplicates=False, max_seq_length=options.max_length
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    prepared = trainer.accelerator.prepare(trainer.model)  # autocast and torch.compile are put around it there

    def step(texts: Sequence[str]) -> float:
        batch = trainer.data_collator([{"text": text} for text in texts])
        loss = trainer.training_step(prepared, batch)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        trainer.state.global_step += 1
        return float(loss)

    return step


def matrix_products(
    model: Any, texts: Sequence[str], options: argparse.Namespace, whole: bool = True
) -> Callable[[], None]:
    """The products of a step over two views of ``texts``, on unpadded tokens. whole: also what [CLS] does not need of
    the last layer, which is all after its attention for the other tokens."""
    config, device = model.config, options.device
    kind = torch.bfloat16 if options.bf16 else torch.float32
    mask = tokenize(model.tokenizer, list(texts), options.max_length)["attention_mask"]
    mask = mask[mask.sum(1).argsort(descending=True)].repeat_interleave(2, 0)
    packed = Packed.of(mask)
    tokens, size, inner = int(mask.sum()), config.hidden_size, config.intermediate_size
    x, h = (torch.randn(tokens, width, device=device, dtype=kind) for width in (size, inner))
    square, up, down = (
        torch.randn(*s, device=device, dtype=kind) for s in ((size, size), (inner, size), (size, inner))
    )
    first, first_h = x[: 2 * len(texts)], h[: 2 * len(texts)]
    heads, width = config.num_attention_heads, size // config.num_attention_heads
    attention = [
        tuple(
            torch.randn(run.sentences * heads, run.length, columns, device=device, dtype=kind)
            for columns in (width, run.length)
        )
        for run in packed.runs
    ]

    def run() -> None:
        for layer in range(1, config.num_hidden_layers + 1):
            full = [(x, square, x)] * 4 + [(x, up, h), (h, down, x)]
            if layer == config.num_hidden_layers and not whole:
                full = [(x, square, x)] * 3 + [(first, square, first), (first, up, first_h), (first_h, down, first)]
            for given, weight, result in full:
                torch.mm(given, weight.t())
                torch.mm(result, weight)  # gradient of what was given
                torch.mm(result.t(), given)  # gradient of the weight
            for vectors, weights in attention:
                for _ in range(2):  # the scores, the gradient of the weights
                    torch.bmm(vectors, vectors.transpose(1, 2))
                for _ in range(4):  # the output, the gradients of values, queries and keys
                    torch.bmm(weights, vectors)
        if device != "cpu":
            torch.cuda.synchronize()

    return run


def products_of_step(model: Any, tokens: int, attended: int) -> float:
    """Floating point operations of `matrix_products`. attended: sum of squared lengths."""
    config = model.config
    size, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    return layers * 3 * 2 * (tokens * (4 * size * size + 2 * size * inner) + 2 * attended * size)


def check_losses(steps: dict[str, Callable[[Sequence[str]], float]], texts: Sequence[str]) -> dict[str, float]:
    """Each one's loss of the first step without dropout; they must agree."""
    losses = {name: step(texts) for name, step in steps.items()}
    for name, loss in losses.items():
        if abs(loss - losses[OURS]) > AGREE * abs(losses[OURS]):
            raise SystemExit(f"the losses do not agree: {OURS} {losses[OURS]:.7f}, {name} {loss:.7f}")
    return losses


def base_shapes(folder: str) -> str:
    """A BERT-base with random weights and the quickstart's tokenizer, saved into ``folder``."""
    set_seed(0)
    BertModel(BertConfig(), add_pooling_layer=True).save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(encoder_path())).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train_file", default=str(CORPUS), help="one sentence a line")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--max_length", type=int, default=32)
    parser.add_argument("--chunk_size", type=int, default=None, help="of our step")
    parser.add_argument("--base", action="store_true", help="BERT-base shapes with random weights, not MiniLM")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--torch_compile", action="store_true", help="compile our step")
    parser.add_argument("--variants", action="store_true", help="also ours without what makes it fast")
    parser.add_argument("--json", default=None, help="file for the figures")
    options = parser.parse_args()
    texts = sentences_of(options.train_file, options.batch * (options.turns + 1))
    with tempfile.TemporaryDirectory() as folder:
        encoder = base_shapes(f"{folder}/base") if options.base else str(encoder_path())
        set_seed(0)
        model = load_model(encoder, "cls").to(options.device)
        model.reset_projection()
        peer = partial(peers, encoder, model.projection_linear, options)
        still = copy.deepcopy(model)
        for module in still.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        whole = argparse.Namespace(**vars(options) | {"torch_compile": False, "bf16": False})
        ours_still = make_ours(still, f"{folder}/still", whole)
        losses = check_losses({OURS: ours_still} | peer(0.0, False), texts[: options.batch])
        del still, ours_still

        settings = {"chunk_size": options.chunk_size}
        steps: dict[str, Callable] = {OURS: make_ours(model, f"{folder}/ours", options, **settings)}
        if options.variants:
            mean = copy.deepcopy(model)
            mean.set_pooling("mean")
            steps["ours, mean pooling"] = make_ours(mean, f"{folder}/mean", options, **settings)
            steps["ours, padded"] = make_ours(model, f"{folder}/padded", options, packing=False, **settings)
        steps |= peer(None, options.bf16)
        batches = [texts[i : i + options.batch] for i in range(0, len(texts), options.batch)]
        contenders = {name: partial(run_step, step, batches, options.device) for name, step in steps.items()}
        products = [matrix_products(model, batch, options) for batch in batches]
        contenders[PRODUCTS] = lambda turn: products[turn]()
        own = [matrix_products(model, batch, options, whole=False) for batch in batches]
        contenders[OWN] = lambda turn: own[turn]()
        measured = interleave(contenders, options.turns)

    title = f"{Path(options.train_file).name}, batch {options.batch}, length {options.max_length}, {options.device}"
    rows = measured.summary(OURS)
    print(f"{machine()}\nlosses of one step without dropout: {losses}\n{table(title, rows, OURS)}")
    lengths = [
        tokenize(model.tokenizer, list(batch), options.max_length)["attention_mask"].sum(1) for batch in batches
    ]
    lengths = torch.cat(lengths).double()
    per_step = 2 * lengths.sum().item() / len(batches)
    operations = products_of_step(model, per_step, 2 * lengths.square().sum().item() / len(batches))
    seconds = rows[OURS]["seconds_median"]
    over, over_own = (1 / rows[name]["ratio_median"] for name in (PRODUCTS, OWN))
    print(
        f"{OURS} / {PRODUCTS}: {over:.3f}, / {OWN}: {over_own:.3f}; {per_step / seconds:,.0f} tokens/s; "
        f"{operations / seconds / 1e9:,.0f} GFLOP/s of those products"
    )
    content = {"tokens_per_step": per_step, "gflop_of_products": operations / 1e9, "ours_over_products_median": over}
    content["ours_over_own_products_median"] = over_own
    write(options.json, {"options": vars(options), "losses": losses, "rows": rows, **content})


def peers(
    encoder: str, head: nn.Linear, options: argparse.Namespace, dropout: float | None, bf16: bool
) -> dict[str, Any]:
    made = {"sentence-transformers": SentenceTransformers, "SimCSE's step": SimCSE}
    found = {
        name: kind(encoder, head, dropout, options.max_length, device=options.device) for name, kind in made.items()
    }
    for each in found.values():
        each.autocast = torch.bfloat16 if bf16 else None
    return found


def run_step(step: Callable, batches: list[Sequence[str]], device: str, turn: int) -> None:
    step(batches[turn])
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
