"""Sentences in memory and streams: the rows of a file of them, whatever they are given as."""

import io

import numpy as np
import pandas
import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDatasetDict
from tiny import SENTENCES, tiny_tokenizer

from hf_focalcse.data.given import GivenSentences, SentenceStream, measure, take_rows, texts_of
from hf_focalcse.data.sentences import read_sentences
from hf_focalcse.data.views import Collator, PlainCollator, Views, as_collator
from hf_focalcse.errors import UserError

TEXT = ("text",)
MESSY = ["  a man plays ", "", None, "two children", " \t", "the cat sleeps", "two children"]
KEPT = ["a man plays", "two children", "the cat sleeps", "two children"]


class OfTorch(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index >= len(self.rows):  # which map-style data sets need not do
            raise KeyError(index)
        return self.rows[index]


class StreamOfTorch(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def rows(name, texts=MESSY):
    return [{"id": i, name: text, "score": 0.5} for i, text in enumerate(texts)]


FORMS = {
    "list": lambda: list(MESSY),
    "tuple": lambda: tuple(MESSY),
    "generator": lambda: (text for text in MESSY),
    "rows": lambda: rows("text"),
    "generator of rows": lambda: iter(rows("sentence")),
    "dataset": lambda: Dataset.from_list(rows("text")),
    "column sentence": lambda: Dataset.from_list(rows("sentence")),
    "any one column": lambda: Dataset.from_list(rows("body")),
    "with a transform": lambda: Dataset.from_list(rows("body")).with_transform(lambda batch: dict(batch)),
    "of torch": lambda: OfTorch(rows("text")),
    "of torch, strings": lambda: OfTorch(MESSY),
    "numpy": lambda: np.array([text or "" for text in MESSY]),
    "pandas series": lambda: pandas.Series(MESSY, index=range(7, 0, -1)),
    "from pandas": lambda: Dataset.from_pandas(pandas.DataFrame({"text": MESSY})),
    "streaming": lambda: Dataset.from_list(rows("sentence")).to_iterable_dataset(),
    "stream of torch": lambda: StreamOfTorch(MESSY),
}


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_gives_the_rows_of_a_file(form, tmp_path, caplog):
    found = take_rows(FORMS[form](), TEXT)
    assert isinstance(found, torch.utils.data.Dataset)
    if isinstance(found, SentenceStream):
        assert [row["text"] for row in found] == [row["text"] for row in found] == KEPT
        assert caplog.text.count("train_dataset: row 2 has no text (None)") == 2  # once a pass
        return
    assert [found[i] for i in range(len(found))] == [{"text": text} for text in KEPT]
    (tmp_path / "same.txt").write_text("\n".join(text or "" for text in MESSY) + "\n")
    report, file = found.report, read_sentences(tmp_path / "same.txt").report
    same = ("lines_read", "blank", "duplicates", "dropped", "kept", "samples", "sha256")
    assert {key: getattr(report, key) for key in same} == {key: getattr(file, key) for key in same}
    nones = 0 if form == "numpy" else 1
    assert ("1 of 7 rows have no text (None)" in caplog.text) == bool(nones)


def test_a_path_is_read_as_a_file_and_sentences_stay_what_they_are(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("\n".join(SENTENCES))
    sentences = take_rows(file, TEXT)
    assert sentences.report.source == str(file) and take_rows(sentences, TEXT) is sentences
    assert len(take_rows(str(file), TEXT)) == len(SENTENCES)


def test_rows_of_a_large_data_set_stay_where_they_are():
    given = Dataset.from_dict({"text": SENTENCES})
    found = take_rows(given, TEXT)
    assert isinstance(found, GivenSentences) and found.rows is given


def test_the_report_says_what_is_cut():
    found = take_rows(SENTENCES, TEXT)
    measure(found, tiny_tokenizer(), 5)
    long = [text for text in SENTENCES if len(tiny_tokenizer()(text)["input_ids"]) > 5]
    assert found.report.truncated_share == len(long) / len(SENTENCES) and found.report.max_seq_length == 5


@pytest.mark.parametrize("columns", [None, ("title", "text")])
def test_rows_reach_another_collator_as_they_are(columns):
    given = [{"title": "a", "text": None}]
    assert take_rows(given, columns) is given
    data = Dataset.from_list(given)
    assert take_rows(data, columns) is data
    assert take_rows(iter(given), columns) == given
    stream = data.to_iterable_dataset()
    assert take_rows(stream, columns) is stream


def test_a_stream_is_shuffled_anew_in_every_epoch():
    stream = Dataset.from_dict({"text": SENTENCES}).to_iterable_dataset().shuffle(seed=1, buffer_size=8)
    found = take_rows(stream, TEXT)
    first = list(found)
    found.set_epoch(1)
    second = list(found)
    assert first != second and sorted(map(str, first)) == sorted(map(str, second))
    take_rows(StreamOfTorch(SENTENCES), TEXT).set_epoch(1)


SPLITS = {"train": Dataset.from_dict({"text": ["a"]}), "validation": Dataset.from_dict({"text": ["a"]})}
REFUSED = {
    "splits": (DatasetDict(SPLITS), r"DatasetDict with the splits train, validation.*such as data\['train'\]"),
    "streamed splits": (IterableDatasetDict(SPLITS), r"IterableDatasetDict with the splits train, validation"),
    "a dict": ({"text": ["a"]}, r"a dict with the keys text, .*datasets.Dataset.from_dict\(data\)"),
    "a frame": (
        pandas.DataFrame({"text": ["a"]}),
        r"DataFrame; give its rows as datasets.Dataset.from_pandas\(data\)",
    ),
    "a set": ({"a", "b"}, r"a set, which has no order that could be repeated; give sorted\(data\)"),
    "bytes": (b"abc", "a bytes; it must be a data set of `datasets` or torch, a list of sentences, or the path"),
    "a number": (7, "a int; it must be a data set"),
    "pairs": (
        Dataset.from_dict({"anchor": ["a"], "positive": ["b"]}),
        r"2 columns of text, 'anchor', 'positive', and none of them is called text or sentence; keep one, as with "
        r"data.select_columns\('anchor'\)",
    ),
    "no text": (
        Dataset.from_dict({"label": [1], "ids": [[1, 2]]}),
        "no column of text; its columns are 'label', 'ids'",
    ),
    "empty": ([], "train_dataset is empty"),
    "blank": (["", None], "train_dataset holds no sentence: 2 rows, none with text"),
    "numbers": (["a", 5], "row 1 is int 5, not a text"),
    "tuples": ([("a", "b")], r"row 0 is tuple \('a', 'b'\), not a text"),
    "other rows": ([{"text": "a"}, {"sentence": "b"}], "row 1 has no column 'text', as the first row has"),
    "half a character": (["a", "\ud800"], r"row 1 holds half a character \(\\ud800\)"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_has_no_rows_or_no_text_is_refused_in_one_sentence(case):
    data, said = REFUSED[case]
    with pytest.raises(UserError, match=said) as error:
        take_rows(data, TEXT)
    assert "\n" not in str(error.value)


def test_text_that_goes_away_is_named():
    given = OfTorch(["a", "b"])
    found = take_rows(given, TEXT)
    given.rows[1] = ""
    with pytest.raises(UserError, match="row 1 had text when training began"):
        found[1]


def test_texts_for_embedding_are_all_there():
    assert texts_of([" a ", ""], "predict") == [" a ", ""]
    assert texts_of(Dataset.from_list(rows("body", SENTENCES)), "predict") == SENTENCES
    assert texts_of(Dataset.from_list(rows("body", SENTENCES)).to_iterable_dataset(), "predict") == SENTENCES
    assert texts_of(OfTorch(SENTENCES), "predict") == texts_of(iter(SENTENCES), "predict") == SENTENCES
    assert texts_of([], "predict") == []
    for data, said in [
        (["a", None], r"predict: row 1 has no text \(None\), so it has no vector"),
        ("a sentence", r"predict takes a list of sentences or a data set, not one string; give \['a sentence'\]"),
        (DatasetDict(SPLITS), "predict is a DatasetDict with the splits train, validation"),
        ([3], "predict: row 0 is int 3, not a text"),
    ]:
        with pytest.raises(UserError, match=said):
            texts_of(data, "predict")


def test_a_function_becomes_a_collator_that_says_its_shape():
    views = Views(tiny_tokenizer(), 8, views=3)
    assert isinstance(views, Collator) and as_collator(views, 32) is views and views.columns == TEXT
    plain = as_collator(lambda rows: {"input_ids": torch.zeros(len(rows), 2, 3)}, 32)
    assert plain == PlainCollator(plain.function, 32, views=2, columns=None)
    assert len(plain([1, 2])["input_ids"]) == 2
    with pytest.raises(UserError, match="gives no input_ids"):
        as_collator(lambda rows: {"n": torch.tensor(len(rows))}, 32)([1, 2])


def test_rows_can_be_sent_to_a_worker():
    found = take_rows(Dataset.from_dict({"text": SENTENCES}), TEXT)
    file = io.BytesIO()
    torch.save(found, file)
    again = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert [row["text"] for row in torch.utils.data.DataLoader(again, batch_size=None)] == SENTENCES
