"""Texts within a template (PromptEOL): what is read, where it is cut, and decoders judged, trained, exported."""

import json

import numpy as np
import pytest
import torch
from tiny import SENTENCES, save_tiny
from tiny_run import TRAIN, write_inputs

from hf_focalcse.cli import main as cli
from hf_focalcse.data.template import NAMED, Template, punctuated
from hf_focalcse.data.views import Views, token_ids
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.publishing.export import export_model
from hf_focalcse.publishing.parity import lowest_cosine
from hf_focalcse.runs.record import RunRecord
from hf_focalcse.runs.scores import Results

TEMPLATE = "the book on {text} is in the house"


def decoder(folder, family="qwen3"):
    """A tiny decoder whose tokenizer adds nothing to a text."""
    save_tiny(folder, family, initializer_range=0.4)
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    return folder


def test_the_strings_of_prompteol(shared):
    cases = json.loads((shared / "golden/family.json").read_text(encoding="utf-8"))
    found = [case for case in cases if case["method"] == "prompteol"]
    assert found
    for case in found:
        assert case["settings"]["template"].replace("{}", "{text}") == NAMED["prompteol"].text
        prompts = [
            NAMED["prompteol"].text.replace("{text}", punctuated(text, plain_quotes=True))
            for text in case["inputs"]["texts"]
        ]
        assert prompts == case["expected"]["prompts"]


@pytest.mark.parametrize("family", ["qwen3", "opt"])
def test_the_vector_is_that_of_the_templates_last_token(tmp_path, family):
    model = load_model(str(decoder(tmp_path, family)), "last", prompt_template=TEMPLATE)
    assert model.spec.notes == [] and f"within the template {TEMPLATE!r}" in " ".join(model.spec.describe().split())
    for text, vector in zip(SENTENCES, model.encode(SENTENCES), strict=True):
        ids = model.tokenizer(TEMPLATE.replace("{text}", text), return_tensors="pt")["input_ids"]
        assert ids[0, -1] == model.tokenizer.get_vocab()["house"]
        with torch.no_grad():
            wanted = model.encoder(ids).last_hidden_state[0, -1].numpy()
        np.testing.assert_allclose(vector, wanted, atol=1e-5)


def test_the_length_counts_the_text_and_never_cuts_the_template(tmp_path):
    model = load_model(str(decoder(tmp_path)), "last", prompt_template=TEMPLATE)
    whole = len(token_ids(model.tokenizer, [TEMPLATE.replace("{text}", "")], 99)[0])
    assert model.reach() == 64 and model.max_length() == 64 - whole - 2
    long = " ".join(["dog", "cat"] * 100)
    for limit in (5, model.max_length()):
        (read,), cut = model.as_read([long], "", limit)
        ids = token_ids(model.tokenizer, [read], cut)[0]
        assert len(ids) == whole + limit <= 64 and read.endswith(" is in the house")
        batch = Views(model.tokenizer, limit).prompted("", model.template)([{"text": long}])
        assert batch["input_ids"][0, 0].tolist() == ids
    short = TEMPLATE.replace("{text}", " ".join(["dog", "cat"] * 2) + " dog")
    np.testing.assert_array_equal(model.encode(long, max_length=5), load_model(str(tmp_path), "last").encode(short))


def test_a_character_of_several_tokens_is_not_torn(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    texts = ["ab🙂c", "🙂", "", "ab"]
    assert Template.of("<{text}>").fill(tokenizer, texts, 4) == ["<ab>", "<🙂>", "<>", "<ab>"]


def test_training_does_not_punctuate_what_evaluation_does(tmp_path):
    model = load_model(str(decoder(tmp_path)), "last", prompt_template="prompteol")
    assert model.as_read(["a dog"], "", 9)[0] == ['This sentence : "a dog." means in one word:"']
    assert model.template.fill(model.tokenizer, ["a dog"], 9) == ['This sentence : "a dog" means in one word:"']


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = write_inputs(tmp_path_factory.mktemp("prompteol"))
    decoder(folder / "decoder")
    line = TRAIN.format(folder).replace("/tiny ", "/decoder ") + " --pooler last --lora --learning_rate 0.01"
    cli.run("train", [*line.split(), "--prompt_template", TEMPLATE], script="run_unsup.py")
    return folder / "out"


def test_a_decoder_is_judged_and_adapted_by_the_same_commands(trained, tmp_path, capsys):
    record = RunRecord.load(trained)
    assert record.model["prompt_template"] == TEMPLATE and record.model["lora"]["target_modules"][0] == "mlp.down_proj"
    assert not (trained / "modules.json").exists() and load_model(str(trained)).template.text == TEMPLATE
    line = f"--model_name_or_path {trained.parent}/decoder --eval_file {trained.parent}/graded.tsv --pooler last"
    cli.run("eval", [*line.split(), "--output_dir", str(tmp_path), "--prompt_template", TEMPLATE])
    scores = Results.read(tmp_path / "results.json")
    assert scores.scores["graded/file/all/spearman"] == pytest.approx(record.baseline["graded/file/all/spearman"])
    assert scores.metadata["model"]["prompt_template"] == TEMPLATE
    assert load_model(str(trained / "checkpoint-4")).template.text == TEMPLATE


def test_a_run_does_not_go_on_with_another_template(trained, capsys):
    line = TRAIN.format(trained.parent).replace("/tiny ", "/decoder ").replace("--max_steps 4", "--max_steps 6")
    line += " --pooler last --lora --learning_rate 0.01 --resume_from_checkpoint last"
    with pytest.raises(SystemExit):
        cli.run("train", [*line.split(), "--prompt_template", "prompteol"], script="run_unsup.py")
    assert f"--prompt_template was {TEMPLATE!r} and is 'prompteol'" in capsys.readouterr().err


def test_an_export_without_sentence_transformers_embeds_as_its_card_says(trained, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="the files of sentence-transformers can say only what stands before a text"):
        export_model(trained, tmp_path / "hub")
    folder, found = export_model(trained, tmp_path / "hub", sentence_transformers=False)
    assert found["transformers"] > 1 - 1e-6
    card = (folder / "README.md").read_text()
    assert f"| Template | `{TEMPLATE}` |" in card and "SentenceTransformer(" not in card
    code = card.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(folder)
    names: dict = {}
    exec(code, names)
    texts = ["A man plays the guitar.", "Someone makes music."]
    assert lowest_cosine(load_model(str(trained)).encode(texts), names["vectors"].numpy()) > 1 - 1e-6


def test_mistakes_are_refused_in_a_sentence(tmp_path):
    folder = str(decoder(tmp_path))
    for template, said in (
        ("no place", "--prompt_template is 'no place'; it must hold {text} once"),
        ("{text} and {text}", "it must hold {text} once"),
        (" {text} ", "between words of its own, or be prompteol"),
    ):
        with pytest.raises(UserError) as error:
            load_model(folder, "last", prompt_template=template)
        assert said in str(error.value)
    with pytest.raises(UserError, match="would both stand before a text; give --prompt '' or --prompt_template ''"):
        load_model(folder, "last", prompt="query: ", prompt_template=TEMPLATE)
    model = load_model(folder, "last", prompt_template=TEMPLATE)
    with pytest.raises(UserError, match="the prompt 'query: ' is asked for, but .* within the template"):
        model.encode(SENTENCES, prompt="query: ")
    with pytest.raises(UserError, match=r"the template .* holds the special token '\[MASK\]'"):
        Views(model.tokenizer, 32).prompted("", Template.of("{text} [MASK]"))
