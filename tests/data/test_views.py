"""Views: three kinds of them, each one class, and what the collator promises about draws, padding and equal texts."""

import ast
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tiny import SENTENCES, save_tiny, tiny_tokenizer
from torch.utils.data import DataLoader

import hf_focalcse
from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, View, Views, build_loss
from hf_focalcse.data.views import PADDING_ID, blank_row, token_ids
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.objectives.pairs import make_pairs

ROWS = [{"text": text} for text in SENTENCES]


@dataclass(frozen=True)
class AroundText(View):
    """The sentence in the place of [PAD] of a template, whose own special tokens are special (PromptBERT)."""

    around: str = "the book '[PAD]' is [MASK]"

    def ids(self, tokenizer, texts, max_seq_length, draws):
        (around,) = token_ids(tokenizer, [self.around], tokenizer.model_max_length, split_special_tokens=False)
        place = around.index(tokenizer.pad_token_id)
        sentences = token_ids(tokenizer, texts, max_seq_length, split_special_tokens=True, add_special_tokens=False)
        return [around[:place] + ids + around[place + 1 :] for ids in sentences]


@dataclass(frozen=True)
class RepeatedWords(View):
    """Some words of the sentence stand twice (ESimCSE)."""

    share: float = 0.3

    def texts(self, rows, draws):
        return [
            " ".join(word for word in text.split() for _ in range(1 + (draws.random() < self.share)))
            for text in self.plain(rows)
        ]


@dataclass(frozen=True)
class Column(View):
    """A column of its own: three of them are an anchor, its positive and a hard negative."""

    columns: tuple[str, ...] = ("anchor",)


TRIPLE = [Column(), Column(("positive",)), Column(("negative",))]
TRIPLES = [
    {"anchor": a, "positive": b, "negative": c}
    for a, b, c in zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], SENTENCES[2:] + SENTENCES[:2], strict=True)
]


@pytest.fixture
def tokenizer():
    return tiny_tokenizer()


def words(tokenizer, ids):
    return tokenizer.convert_ids_to_tokens(ids)


def make_trainer(folder, views, rows, **arguments):
    model = load_model(str(save_tiny(folder / "base")), "cls", dropout=0.1)
    defaults = {
        "max_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1, "use_cpu": True, "disable_tqdm": True,
        "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False,
    }  # fmt: skip
    args = FocalCSETrainingArguments(output_dir=str(folder / "out"), **(defaults | arguments))
    collator = Views(model.tokenizer, 16, views)
    return FocalCSETrainer(model, args, build_loss("focal"), rows, data_collator=collator)


@pytest.mark.parametrize(
    ("views", "rows"),
    [([AroundText(), AroundText()], ROWS), ([View(), RepeatedWords()], ROWS), (TRIPLE, TRIPLES), (2, ROWS)],
    ids=["template", "repeated words", "three columns", "equal"],
)
def test_each_kind_of_view_trains(tmp_path, views, rows):
    trainer = make_trainer(tmp_path, views, rows)
    before = trainer.model.encoder.embeddings.word_embeddings.weight.detach().clone()
    trainer.train()
    assert trainer.state.global_step == 2
    assert not torch.equal(before, trainer.model.encoder.embeddings.word_embeddings.weight)
    (first, *_) = [line for line in trainer.state.log_history if "loss" in line]
    count = views if isinstance(views, int) else len(views)
    all_others = 4 * (count - 1) - 1  # those of a third view are hard ones
    if rows is TRIPLES:  # each text stands in three rows; equal ones are left out
        assert 4 < first["negatives_per_anchor_mean"] < all_others
    else:
        assert first["negatives_per_anchor_mean"] == all_others


def test_a_resumed_run_draws_the_same(tmp_path):
    views, ends = [View(), RepeatedWords()], []
    for folder in (tmp_path / "whole", tmp_path / "resumed"):
        shutil.copytree(tmp_path / "whole", folder, dirs_exist_ok=True) if ends else None
        trainer = make_trainer(folder, views, ROWS, max_steps=6, save_strategy="steps", save_steps=3)
        trainer.train(resume_from_checkpoint=str(folder / "out/checkpoint-3") if ends else None)
        ends.append(trainer.model.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_a_template_keeps_its_special_tokens_and_its_length(tokenizer):
    rows = [{"text": "a [MASK] dog"}, {"text": "the old man plays guitar"}]
    ids = Views(tokenizer, 5, [AroundText(), View()])(rows)["input_ids"]  # (2, 2, L)
    around = ["[CLS]", "the", "book", "'", "'", "is", "[MASK]", "[SEP]"]
    around = [word if word in tokenizer.get_vocab() else "[UNK]" for word in around]
    text = [["a", "[UNK]", *tokenizer.tokenize("mask")][:5], ["the", "old", "man", "plays", "guitar"]]
    for row, sentence in zip(ids, text, strict=True):
        assert words(tokenizer, row[0])[:13] == [*around[:4], *sentence, *around[4:]][:13]
        assert (row[0] == tokenizer.mask_token_id).sum() == 1
    assert words(tokenizer, ids[1, 1]) == ["[CLS]", "the", "old", "man", "[SEP]", *["[PAD]"] * 8]


def test_views_of_columns_meet_in_make_pairs(tokenizer):
    batch = Views(tokenizer, 16, TRIPLE)(TRIPLES)
    for row, ids, mask in zip(TRIPLES, batch["input_ids"], batch["attention_mask"], strict=True):
        for text, view, kept in zip(row.values(), ids, mask, strict=True):
            assert view[kept.bool()].tolist() == tokenizer(text, truncation=True, max_length=16)["input_ids"]
            assert not view[~kept.bool()].any() and kept.sort(descending=True).values.equal(kept)
    embeddings = torch.nn.functional.one_hot(batch["input_ids"], 128).sum(2).float()  # (B, V, D), some vectors
    pairs = make_pairs(embeddings, batch["text_ids"])
    assert pairs.candidates[: len(TRIPLES)].equal(embeddings[:, 1]) and pairs.candidates[len(TRIPLES) :].equal(
        embeddings[:, 2]
    )


def test_draws_follow_the_seed_and_the_batch(tokenizer):
    def ids(rows, seed=0):
        return Views(tokenizer, 32, [RepeatedWords(), RepeatedWords()], seed)(rows)["input_ids"]

    first = ids(ROWS)
    torch.manual_seed(5)
    assert ids(ROWS).equal(first)  # whatever was drawn elsewhere
    assert not torch.equal(first[:, 0], first[:, 1])  # each view draws
    for others in (ids(ROWS, seed=1), ids(ROWS[1:] + ROWS[:1]).roll(1, 0)):
        assert others.shape != first.shape or not others.equal(first)


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_draw_the_same(tokenizer, workers):
    collator = Views(tokenizer, 32, [View(), RepeatedWords()])
    alone = list(DataLoader(ROWS, batch_size=4, collate_fn=collator))
    beside = DataLoader(ROWS, batch_size=4, collate_fn=collator, num_workers=workers)
    for here, there in zip(alone, beside, strict=True):
        assert all(here[name].equal(there[name]) for name in here)


def test_equal_texts_are_those_of_the_rows_not_of_what_views_make_of_them(tokenizer):
    rows = [{"text": "a man reads the old book"}] * 8 + [{"text": "a dog"}]
    batch = Views(tokenizer, 32, [RepeatedWords(share=0.5), View()])(rows)
    assert len({tuple(ids.tolist()) for ids in batch["input_ids"][:8, 0]}) > 1
    assert len(batch["text_ids"].unique()) == 2
    assert batch["text_ids"][0] == Views(tokenizer, 8)(rows)["text_ids"][0]


@pytest.mark.parametrize("views", [2, TRIPLE, [View(("title", "text")), View()]], ids=["one", "three", "joined"])
def test_a_blank_row_is_known_by_its_id(tokenizer, views):
    collator = Views(tokenizer, 8, views)
    row = dict.fromkeys(blank_row(collator), "a dog")
    batch = collator([row, blank_row(collator)])
    assert batch["text_ids"][1] == PADDING_ID != batch["text_ids"][0]
    assert words(tokenizer, batch["input_ids"][1, 0])[:2] == ["[CLS]", "[SEP]"]


def test_a_missing_column_is_named_with_those_there(tokenizer):
    with pytest.raises(UserError, match="reads the column 'positive', but the rows have 'anchor', 'text'; rename"):
        Views(tokenizer, 8, TRIPLE[:2])([{"anchor": "a", "text": "b"}])


def test_no_views_are_refused(tokenizer):
    with pytest.raises(UserError, match="views is 0; it must be at least 1"):
        Views(tokenizer, 8, [])


def calls_of_a_tokenizer(source):
    """Lines of a program that call ``tokenizer(…)`` or ``….tokenizer(…)``, or one of its other ways to make ids."""
    methods = {"encode_plus", "batch_encode_plus", "encode_batch", "convert_tokens_to_ids"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name.lstrip("_") == "tokenizer" or name in methods:
                yield node.lineno


def test_views_alone_call_a_tokenizer():
    package = Path(hf_focalcse.__file__).parent
    found = {
        str(file.relative_to(package)): list(lines)
        for file in package.rglob("*.py")
        if (lines := list(calls_of_a_tokenizer(file.read_text(encoding="utf-8"))))
    }
    assert list(found) == ["data/views.py"], found
    assert list(calls_of_a_tokenizer("ids = self.tokenizer(texts)\nmodel._tokenizer(x)\ntokenizer(y)")) == [1, 2, 3]
