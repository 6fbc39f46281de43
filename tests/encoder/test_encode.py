"""Encode and similarity beside those of sentence-transformers, whose evaluators take the model as it is; and mteb."""

import enum
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest
import torch
from tiny import CONFIGS, SENTENCES, save_tiny, tiny_tokenizer
from transformers import pipeline

from hf_focalcse.data.views import tokenize
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.mteb import fingerprint
from hf_focalcse.encoder.similarity import SIMILARITIES
from hf_focalcse.errors import UserError
from hf_focalcse.publishing.formats import write_encoder, write_sentence_transformers

PROMPTS = {"query": "the man reads ", "document": "a book of ", "STS": "music of "}
SCORES = [0.1, 0.9, 0.4, 0.2, 0.7, 0.3, 0.6, 0.5]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(ours, the same encoder in sentence-transformers), mean pooling."""
    from sentence_transformers import SentenceTransformer

    folder = tmp_path_factory.mktemp("encode")
    ours = load_model(str(save_tiny(folder / "base")), "mean")
    (folder / "theirs").mkdir()
    limit = write_encoder(ours, folder / "theirs")
    write_sentence_transformers(ours, folder / "theirs", limit)
    theirs = SentenceTransformer(str(folder / "theirs"), device="cpu", prompts=dict(PROMPTS))
    ours.prompts.update(PROMPTS)
    return ours, theirs


@pytest.fixture(scope="module")
def ours(models):
    return models[0]


CALLS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "as an evaluator calls it": {
        "batch_size": 3,
        "show_progress_bar": False,
        "convert_to_numpy": True,
        "precision": None,
        "normalize_embeddings": False,
        "truncate_dim": None,
    },
    "length 1": {"normalize_embeddings": True},
    "cut, then length 1": {"truncate_dim": 5, "normalize_embeddings": True},
    "a tensor": {"convert_to_tensor": True, "device": "cpu"},
    "a tensor, cut": {"convert_to_tensor": True, "truncate_dim": 3},
    "a list of tensors": {"convert_to_numpy": False},
    "prompt": {"prompt": "two dogs "},
    "prompt_name": {"prompt_name": "query"},
    "prompt before prompt_name": {"prompt_name": "query", "prompt": ""},
}


@pytest.mark.parametrize("texts", [SENTENCES[0], SENTENCES], ids=["text", "list"])
@pytest.mark.parametrize("call", CALLS)
def test_encode_gives_what_sentence_transformers_gives(models, call, texts):
    found, expected = (model.encode(texts, **CALLS[call]) for model in models)
    assert type(found) is type(expected) and np.shape(found) == np.shape(expected)
    first = found[0] if isinstance(found, list) else found
    assert "float32" in str(first.dtype) and (not isinstance(first, torch.Tensor) or first.device == models[0].device)
    np.testing.assert_allclose(np.stack(list(found)), np.stack(list(expected)), atol=1e-6)


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
@pytest.mark.parametrize("default", [None, "STS"])
def test_queries_documents_and_the_default_have_their_prompts(models, method, default):
    try:
        for model in models:
            model.default_prompt_name = default
        found, expected = (getattr(model, method)(SENTENCES[:2], batch_size=8) for model in models)
        prompt = {"encode_query": "query", "encode_document": "document"}.get(method) or default
        plain = models[0].encode([PROMPTS.get(prompt, "") + text for text in SENTENCES[:2]], prompt="")
    finally:
        for model in models:
            model.default_prompt_name = None
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(found, plain)


def test_without_prompts_queries_and_documents_are_encoded_as_they_are(tmp_path):
    model = load_model(str(save_tiny(tmp_path)), "mean")
    expected = model.encode(SENTENCES)
    model.prompts["other"] = "music of "
    model.default_prompt_name = "other"
    for method in (model.encode_query, model.encode_document):  # the default is not theirs
        np.testing.assert_array_equal(method(SENTENCES), expected)
    assert not np.array_equal(model.encode(SENTENCES), expected)
    del model.prompts["document"]
    model.prompts |= {"corpus": "", "passage": "two dogs "}
    np.testing.assert_array_equal(model.encode_document(SENTENCES), model.encode(SENTENCES, "passage"))


def test_what_the_first_argument_may_be(ours):
    expected = ours.encode(SENTENCES)
    for given in (iter(SENTENCES), np.array(SENTENCES), tuple(SENTENCES)):
        np.testing.assert_array_equal(ours.encode(given), expected)
    for name in ("inputs", "sentences", "texts"):
        np.testing.assert_array_equal(ours.encode(**{name: SENTENCES}), expected)
    assert ours.encode([]).shape == (0, 16) and ours.encode([], convert_to_tensor=True).shape == (0, 16)


REFUSED = {
    "no input": ((), {}, "a text or a list of texts, not NoneType"),
    "a mapping": (({"text": SENTENCES},), {}, "not dict; of a data set give one column"),
    "None among the texts": ((["a", None],), {}, "text 2 of 2 is None, a NoneType; encode takes texts alone"),
    "rows": (([{"text": "a"}],), {}, "text 1 of 1 is {'text': 'a'}, a dict"),
    "an unknown prompt": ((["a"], "texts"), {}, "no prompt called 'texts'; it has 'query', 'document', 'STS'"),
    "a position of version 0.1": ((["a"], 64), {}, "no prompt called 64"),
    "tokens": ((["a"],), {"output_value": "token_embeddings"}, r"encoder\(\*\*model.tokenizer"),
    "int8": ((["a"],), {"precision": "int8"}, "quantize_embeddings makes other precisions"),
    "devices": ((["a"],), {"device": ["cpu", "cpu"]}, "on one device, not on a pool"),
    "a pool": ((["a"],), {"pool": {}}, "on one device, not on a pool"),
    "a device that is not there": ((["a"],), {"device": "cuda:77"}, "no device 'cuda:77' here; there are: cpu"),
    "a misspelling": ((["a"],), {"normalise_embeddings": True}, "did you mean 'normalize_embeddings'"),
    "no batch": ((["a"],), {"batch_size": 0}, "batch_size is 0"),
    "too many dimensions": ((["a"],), {"truncate_dim": 17}, "truncate_dim is 17; this encoder's vectors have 1 to 16"),
    "no dimensions": ((["a"],), {"truncate_dim": 0}, "truncate_dim is 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_encode_refuses_in_a_sentence(ours, case):
    positional, named, said = REFUSED[case]
    with pytest.raises(UserError, match=said):
        ours.encode(*positional, **named)


def test_no_pool_is_no_pool(ours):
    """As `mine_hard_negatives` of sentence-transformers calls it."""
    np.testing.assert_array_equal(ours.encode(SENTENCES, pool=None, chunk_size=None), ours.encode(SENTENCES))


def test_the_mode_is_as_before_even_when_encoding_fails(ours, monkeypatch):
    ours.train()
    monkeypatch.setattr(type(ours), "embed", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ours.encode(SENTENCES)
    assert ours.training
    ours.eval()


def test_lengths_and_dimensions_have_the_names_of_sentence_transformers(models):
    ours, theirs = models
    assert ours.max_seq_length == theirs.max_seq_length == 64
    assert ours.get_embedding_dimension() == ours.get_sentence_embedding_dimension() == 16
    long = SENTENCES[3]
    try:
        ours.max_seq_length = theirs.max_seq_length = 5
        ours.truncate_dim = theirs.truncate_dim = 4
        assert ours.get_embedding_dimension() == theirs.get_embedding_dimension() == 4
        np.testing.assert_allclose(ours.encode(long), theirs.encode(long), atol=1e-6)
        assert ours.encode(long).shape == (4,) and ours.max_length() == 5
    finally:
        ours.truncate_dim = theirs.truncate_dim = None
        ours.max_seq_length = theirs.max_seq_length = 64
    with pytest.raises(UserError, match="max_seq_length is 67; this encoder takes 3 to 66 tokens"):
        ours.max_seq_length = 67


@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarities_are_those_of_sentence_transformers(models, name):
    ours, theirs = models
    arrays = ours.encode(SENTENCES[:3]), ours.encode(SENTENCES[3:6])
    assert ours.similarity_fn_name == theirs.similarity_fn_name == "cosine"
    try:
        ours.similarity_fn_name = theirs.similarity_fn_name = name
        for one, other in (
            arrays,
            map(torch.tensor, arrays),
            map(list, arrays),
            (arrays[0][0], arrays[1][0]),
        ):
            for method in ("similarity", "similarity_pairwise"):
                found, expected = (getattr(model, method)(one, other) for model in models)
                assert isinstance(found, torch.Tensor) and found.shape == expected.shape
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    finally:
        ours.similarity_fn_name = theirs.similarity_fn_name = None
    whole = torch.ones(2, 3, dtype=torch.int64)
    torch.testing.assert_close(ours.similarity(whole, whole.double()), torch.ones(2, 2))
    with pytest.raises(UserError, match="no similarity 'cosin', did you mean 'cosine'"):
        ours.similarity_fn_name = "cosin"


def evaluators() -> dict[str, Any]:
    from sentence_transformers import SimilarityFunction
    from sentence_transformers.sentence_transformer import evaluation

    one, other = SENTENCES, SENTENCES[::-1]
    ids = {f"d{i}": text for i, text in enumerate(SENTENCES)}
    samples = [{"query": one[i], "positive": [one[i]], "negative": other[:3]} for i in range(3)]
    quiet = {"write_csv": False, "show_progress_bar": False}
    return {
        "similarity": evaluation.EmbeddingSimilarityEvaluator(
            one, other, SCORES, main_similarity=SimilarityFunction.COSINE, **quiet
        ),
        "similarity, all four, cut": evaluation.EmbeddingSimilarityEvaluator(
            one, other, SCORES, similarity_fn_names=list(SIMILARITIES), truncate_dim=6, **quiet
        ),
        "retrieval": evaluation.InformationRetrievalEvaluator(
            {"q1": "two dogs", "q2": "the house"}, ids, {"q1": {"d1"}, "q2": {"d6"}}, **quiet
        ),
        "triplets": evaluation.TripletEvaluator(one, other, one[3:] + one[:3], **quiet),
        "pairs": evaluation.BinaryClassificationEvaluator(one, other, [1, 0] * 4, **quiet),
        "reranking": evaluation.RerankingEvaluator(samples, **quiet),
        "translation": evaluation.TranslationEvaluator(one, other, **quiet),
        "paraphrases": evaluation.ParaphraseMiningEvaluator(ids, [("d0", "d1"), ("d2", "d6")], **quiet),
        "mse": evaluation.MSEEvaluator(one, other, teacher_model=SimpleNamespace(encode=fixed), **quiet),
    }


def fixed(texts, **_):
    return np.ones((len(texts), 16), dtype=np.float32)


def test_evaluators_of_sentence_transformers_take_the_model(models):
    for name, evaluator in evaluators().items():
        found, expected = (evaluator(model) for model in models)
        assert found.keys() == expected.keys(), name
        assert found == pytest.approx(expected, abs=1e-6), name
        assert models[0].model_card_data.eval_results_dict[evaluator] == found


# ---- forward


@pytest.mark.parametrize("family", CONFIGS)
def test_token_types_count_as_in_the_plain_encoder(tmp_path, family):
    """Where an encoder has token types the vectors follow them, elsewhere transformers passes over them too."""
    model = load_model(str(save_tiny(tmp_path, family)), "mean", dropout=0.0)  # packed training gives the same then
    batch = dict(tokenize(model.tokenizer, SENTENCES, 64))
    two = batch["attention_mask"].cumsum(1) > 4
    known = getattr(model.config, "type_vocab_size", 0)
    with torch.no_grad():
        for types in (torch.zeros_like(two).long(), two.long()):
            if family in ("roberta", "xlm-roberta") and types.any():
                with pytest.raises(UserError, match="token_type_ids go up to 1, but this encoder has 1 token types"):
                    model(**batch, token_type_ids=types)
                continue
            taken = {} if family in ("mpnet",) else {"token_type_ids": types}
            raw = model.encoder.eval()(**batch, **taken).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            expected = (raw * mask).sum(1) / mask.sum(1)
            for mode in (False, True):
                torch.testing.assert_close(model.train(mode)(**batch, token_type_ids=types), expected)
        same = torch.allclose(model(**batch), expected, atol=1e-5)
        assert same is (known < 2 or family not in ("bert", "albert", "electra"))


def test_what_a_tokenizer_gives_goes_in_and_a_pipeline_takes_the_model(ours):
    tokenizer = tiny_tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    with torch.no_grad():
        batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
        assert "token_type_ids" in batch
        expected = ours.eval()(**batch)
    np.testing.assert_allclose(ours.encode(SENTENCES), expected, atol=1e-6)
    extract = pipeline("feature-extraction", model=ours, tokenizer=tokenizer)
    np.testing.assert_allclose(extract(SENTENCES, batch_size=3), expected, atol=1e-6)
    np.testing.assert_allclose(extract(SENTENCES[0]), expected[0], atol=1e-6)


# ---- mteb


class Kind(enum.Enum):
    query = "query"
    document = "document"


@runtime_checkable
class EncoderProtocol(Protocol):
    """What mteb 2 asks of a model that it calls directly."""

    def encode(self, inputs, *, task_metadata, hf_split, hf_subset, prompt_type=None, **kwargs): ...
    def similarity(self, embeddings1, embeddings2): ...
    def similarity_pairwise(self, embeddings1, embeddings2): ...
    @property
    def mteb_model_meta(self): ...


@pytest.fixture
def described(monkeypatch):
    """A stand-in for mteb's own description, so that the protocol can be checked without mteb."""
    monkeypatch.setattr("hf_focalcse.encoder.mteb.describe", fingerprint)


def test_mteb_calls_encode_in_its_own_way(ours, described):
    assert isinstance(ours, EncoderProtocol)
    assert not any(hasattr(ours, name) for name in ("index", "search", "predict"))  # else it were another protocol's
    loader = [{"text": SENTENCES[:3]}, {"text": SENTENCES[3:]}]
    task = SimpleNamespace(name="Tiny", type="STS")
    asked = {"task_metadata": task, "hf_split": "test", "hf_subset": "default", "batch_size": 4}
    found = ours.encode(loader, **asked)  # the prompt called as the type of the task
    np.testing.assert_allclose(found, ours.encode(SENTENCES, prompt_name="STS"), atol=1e-6)
    task.type = "Retrieval"
    for kind, prompt in ((Kind.query, "query"), (Kind.document, "document"), (None, None)):
        found = ours.encode(loader, **asked, prompt_type=kind)
        np.testing.assert_allclose(found, ours.encode(SENTENCES, prompt_name=prompt), atol=1e-6)


def test_other_weights_or_another_pooling_are_another_revision_for_mteb(tmp_path):
    """Mteb keeps scores by name and revision, and answers the next run from them."""
    model = load_model(str(save_tiny(tmp_path)), "mean")
    seen = [fingerprint(model)]
    assert fingerprint(model) == seen[0] == fingerprint(load_model(str(tmp_path), "mean"))
    model.set_pooling("cls_before_pooler")
    seen.append(fingerprint(model))
    model.encoder.encoder.layer[0].output.dense.bias.data += 1e-3
    seen.append(fingerprint(model))
    model.truncate_dim = 8
    seen.append(fingerprint(model))
    assert len(set(seen)) == 4


def test_mteb_itself_gives_our_score(shared_data, tmp_path):
    mteb = pytest.importorskip("mteb", reason="mteb is not installed")
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    from hf_focalcse.evaluation import evaluate_sts, load_tasks

    (task,) = load_tasks(["STSBenchmark/dev"], shared_data / "sts")
    pairs = task.pairs

    class Local(AbsTaskSTS):
        metadata = TaskMetadata(
            name="LocalSTS", dataset={"path": "local/sts", "revision": "1"}, description="Local pairs.", type="STS",
            category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="cosine_spearman", date=None, domains=None, task_subtypes=None, license=None,
            annotations_creators=None, dialect=None, sample_creation=None, bibtex_citation="", reference=None,
        )  # fmt: skip
        min_score, max_score = 0, 5

        def load_data(self, **_):
            columns = {
                "sentence1": [pair.sentence1 for pair in pairs],
                "sentence2": [pair.sentence2 for pair in pairs],
                "score": [pair.score for pair in pairs],
            }
            self.dataset = DatasetDict({"test": Dataset.from_dict(columns)})
            self.data_loaded = True

    model = load_model(str(save_tiny(tmp_path)), "mean")
    cache = mteb.ResultCache(tmp_path / "cache")
    result = mteb.evaluate(model, Local(), cache=cache, encode_kwargs={"batch_size": 32}, co2_tracker=False)
    expected = evaluate_sts(model, [task], progress=False).scores["STSBenchmark/dev/all/spearman"]
    assert 100 * result.task_results[0].get_score() == pytest.approx(expected, abs=2e-3)  # its cosines are float32
    model.set_pooling("cls_before_pooler")  # not answered from the cache
    other = mteb.evaluate(model, Local(), cache=cache, encode_kwargs={"batch_size": 32}, co2_tracker=False)
    assert other.task_results[0].get_score() != result.task_results[0].get_score()
