"""PromptBERT: a template a view, the state of its mask token, and what the template alone says taken out of it."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from family import TEMPLATES
from golden import case_of, check
from tiny import CONFIGS, SENTENCES, save_tiny
from tiny_run import TRAIN, write_inputs
from transformers import BertConfig

from hf_focalcse import BertForFocalCL, build_loss, export_model, load_model
from hf_focalcse.cli import main as cli
from hf_focalcse.data.prompted import Prompted, shifted_positions
from hf_focalcse.data.template import NAMED, Template, apart
from hf_focalcse.data.views import Repeat, View, Views, token_ids
from hf_focalcse.encoder.denoising import Denoising
from hf_focalcse.encoder.families import FAMILIES
from hf_focalcse.errors import UserError
from hf_focalcse.objectives import Contrastive
from hf_focalcse.objectives.momentum_queue import MomentumQueue
from hf_focalcse.objectives.pairs import make_pairs
from hf_focalcse.publishing.parity import lowest_cosine
from hf_focalcse.runs.record import RunRecord
from hf_focalcse.runs.scores import Results

VIEWS = [Prompted(template=Template.of(text)) for text in TEMPLATES]
ROWS = [{"text": text} for text in SENTENCES]


def prompted(folder, family="bert", **config):
    save_tiny(folder, family, initializer_range=0.4, **config)
    return load_model(str(folder), "mask", dropout=0.0, prompt_template=TEMPLATES[0])


# ---- the golden cases


@pytest.mark.parametrize("number", range(3))
def test_golden_values(shared, number):
    inputs, settings, expected = case_of(shared, "promptbert", number)
    length, prefix = settings["template_length"], settings["prefix_length_with_cls"]
    tables = torch.stack([inputs["table1"], inputs["table2"]]).requires_grad_()  # (V, lengths, D)
    lengths = torch.arange(tables.shape[1])
    check(shifted_positions(length, torch.full_like(lengths, prefix), lengths), expected["template_position_ids"])

    config = BertConfig(vocab_size=9, hidden_size=tables.shape[2], num_hidden_layers=1, num_attention_heads=1,
                        intermediate_size=4)  # fmt: skip
    model = BertForFocalCL(config).double().train()
    model.set_pooling("mask")
    model.tokenizer = type("Tokenizer", (), {"mask_token_id": 4})()
    model.packing = False
    with torch.no_grad():
        model.projection_linear.weight.copy_(inputs["mlp_weight"])
        model.projection_linear.bias.copy_(inputs["mlp_bias"])
    texts = torch.stack([inputs["h1"], inputs["h2"]], 1).requires_grad_()  # (B, V, D)

    def read(input_ids, attention_mask, position_ids=None, **_):
        """In the place of the encoder: states of the mask token, which is the last one of every row."""
        view = input_ids[:, 0] - 5
        if position_ids is None:
            found = texts[input_ids[:, 1], view]
        else:
            found = tables[view, position_ids[:, -1] - (length - 1)]
        hidden = found.new_zeros(*input_ids.shape, found.shape[-1]) + 9.0
        return type("Output", (), {"last_hidden_state": torch.cat([hidden[:, :-1], found.unsqueeze(1)], 1)})

    model.encoder.forward = read
    empty = torch.full((2, length), 1)
    empty[:, 0], empty[:, -1] = torch.tensor([5, 6]), 4
    model.denoising = Denoising(empty, torch.ones_like(empty), torch.tensor([prefix, prefix]))
    ids = torch.ones(*texts.shape[:2], 3, dtype=torch.int64)
    ids[..., 0], ids[..., 1], ids[..., 2] = torch.tensor([5, 6]), torch.arange(len(ids)).unsqueeze(1), 4
    mask = torch.ones_like(ids)
    loss = build_loss("infonce", temperature=settings["tau"])
    vectors = model(ids, mask, text_tokens=inputs["n_tokens"])
    check(loss.rows(make_pairs(vectors)), expected["rows"])
    value = loss(make_pairs(vectors))
    check(value, expected["loss"])
    value.backward()
    for view, name in enumerate(("1", "2")):
        check(texts.grad[:, view], expected[f"grad_h{name}"])
        check(tables.grad[view], expected[f"grad_table{name}"])
    check(loss(make_pairs(model(ids, mask))), expected["loss_without_denoising"])
    with pytest.raises(AssertionError):  # the order matters: the projection comes last
        check(value, expected["loss_if_mlp_before_subtraction"])


# ---- against a loop over single sentences


def by_hand(model, text, view, limit):
    """One sentence in one template, alone and without padding: the projected vector."""
    tokenizer, template = model.tokenizer, view.template
    filled = template.fill(tokenizer, [text], limit, split_special_tokens=True)[0]
    ids = tokenizer(filled)["input_ids"]
    empty, prefix = template.empty(tokenizer)
    n = len(ids) - len(empty)
    assert ids[:prefix] == empty[:prefix] and ids[prefix + n :] == empty[prefix:]

    def at_mask(ids, positions):
        read = {"position_ids": torch.tensor([positions]) + model.first_position}
        hidden = model.encoder(torch.tensor([ids]), torch.ones(1, len(ids)), **read).last_hidden_state
        return hidden[0, ids.index(tokenizer.mask_token_id)]

    places = list(range(len(ids)))
    difference = at_mask(ids, places) - at_mask(empty, places[:prefix] + places[prefix + n :])
    return torch.tanh(model.projection_linear(difference))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "modernbert"])
def test_value_and_gradient_are_those_of_single_sentences(tmp_path, family):
    model = prompted(tmp_path, family).double().train()
    limit = 4
    objective = Contrastive(build_loss("focal"), views=VIEWS, max_seq_length=limit)
    objective.attach(model)
    batch = Views(model.tokenizer, limit, VIEWS).prompted("", model.template)(ROWS)
    assert len(batch["text_tokens"].unique()) > 1 and batch["text_tokens"].shape == (len(ROWS), 2)

    def found(chunk_size):
        model.zero_grad()
        model.chunk_size = chunk_size
        value, _ = objective.loss(model.embed_views, batch)
        value.backward()
        return value, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    model.zero_grad()
    vectors = torch.stack([torch.stack([by_hand(model, row["text"], view, limit) for view in VIEWS]) for row in ROWS])
    expected = objective.criterion(make_pairs(vectors, batch["text_ids"]))
    expected.backward()
    gradient = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert model.projection_linear.weight.grad.abs().sum() > 0
    for chunk_size in (None, 3):
        value, own = found(chunk_size)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-5 if family == "modernbert" else 1e-10)
        assert own.keys() == gradient.keys()
        for name in own:
            near = 1e-5 if family == "modernbert" else 1e-9  # whose angles are float32
            torch.testing.assert_close(own[name], gradient[name], rtol=0, atol=near)


def test_equal_lengths_share_their_noise_and_chunks_do_not_change_it(tmp_path):
    model = prompted(tmp_path)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    noise = Denoising.of(model, VIEWS)
    states = noise.states(model, torch.tensor([[3, 3], [3, 4], [4, 4]]))
    assert torch.equal(states[0, 0], states[1, 0]) and torch.equal(states[1, 1], states[2, 1])
    assert not torch.equal(states[0, 0], states[2, 0]) and not torch.equal(states[0, 0], states[0, 1])


@pytest.mark.parametrize(
    "loss", ["infonce", "focal", pytest.param("dclr", id="dclr"), "rankcse", "rankcse_released", "queue"]
)
def test_every_loss_trains_with_it(tmp_path, loss):
    model = prompted(tmp_path / "base")
    if loss == "queue":
        objective = MomentumQueue(build_loss("focal"), queue_size=12, views=VIEWS, max_seq_length=9)
    else:
        needs = build_loss(loss).needs_reference
        other = load_model(str(save_tiny(tmp_path / "other", "distilbert")), "mean") if needs else None
        objective = Contrastive(build_loss(loss), views=VIEWS, reference=other, max_seq_length=9)
    objective.attach(model)
    collate = objective.collate(objective.collator(model.tokenizer, 9, 0).prompted("", model.template))
    batch = collate(ROWS) | {"seed": 1}
    start = model.encoder.get_input_embeddings().weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        value, _ = objective.loss(model.train().embed_views, batch)
        value.backward()
        optimizer.step()
        objective.after_step(model)
    assert value.isfinite() and not torch.equal(start, model.encoder.get_input_embeddings().weight)


def test_the_momentum_encoder_denoises_as_well(tmp_path):
    model = prompted(tmp_path).train()
    objective = MomentumQueue(build_loss("focal"), queue_size=12, views=VIEWS, max_seq_length=9)
    objective.attach(model)
    batch = objective.collator(model.tokenizer, 9, 0)(ROWS)
    found = objective._encode(batch)
    model.set_pooling("mask", "always")
    read = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        torch.testing.assert_close(found, model.eval()(*read, text_tokens=batch["text_tokens"])[:, 0])
        assert not torch.allclose(found, model(*read)[:, 0], atol=1e-3)


# ---- templates and texts


def test_a_text_is_cut_and_its_template_is_not(tmp_path):
    model = prompted(tmp_path)
    tokenizer, long = model.tokenizer, " ".join(["dog"] * 50)
    batch = Views(tokenizer, 5, VIEWS)([{"text": long}, {"text": "dog"}])
    assert batch["text_tokens"].tolist() == [[5, 5], [1, 1]]
    for view, kind in enumerate(VIEWS):
        wanted = tokenizer(kind.template.text.replace("{mask}", "[MASK]").replace("{text}", " ".join(["dog"] * 5)))
        assert batch["input_ids"][0, view, : len(wanted["input_ids"])].tolist() == wanted["input_ids"]
    read, limit = model.as_read([long], "", model.max_length())
    assert token_ids(tokenizer, read, limit)[0].count(tokenizer.mask_token_id) == 1
    assert len(token_ids(tokenizer, read, limit)[0]) <= model.reach()
    assert model.encode([long]).shape == (1, 16)


def test_a_mask_token_in_a_text_is_no_mask_token(tmp_path):
    model = prompted(tmp_path)
    batch = Views(model.tokenizer, 32, VIEWS)([{"text": "a [MASK] dog [SEP]"}, {"text": "a dog"}])
    mask_id, sep = model.tokenizer.mask_token_id, model.tokenizer.sep_token_id
    assert ((batch["input_ids"] == mask_id).sum(-1) == 1).all() and ((batch["input_ids"] == sep).sum(-1) == 1).all()
    assert apart("a [MASK] dog", ["[MASK]"]) == "a [ MASK] dog"
    # where a tokenizer reads it in a text, as every library does, the template's is still the one that is pooled
    whole, alone = model.encode(["a [MASK] dog"])[0], model.template.around(model.tokenizer)
    ids = model.tokenizer(alone[0] + "a [MASK] dog" + alone[1], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        hidden = model.encoder(ids).last_hidden_state[0]
    np.testing.assert_allclose(whole, hidden[(ids[0] == mask_id).nonzero()[-1, 0]].numpy(), atol=1e-6)


def test_the_published_templates_and_their_full_stop(tmp_path):
    assert {
        family.name: family.template("promptbert") for family in FAMILIES if family.name in ("Bert", "Roberta")
    } == {
        "Bert": "promptbert",
        "Roberta": "promptroberta",
    }
    for family in ("bert", "roberta"):
        model = load_model(str(save_tiny(tmp_path / family, family)), "mask", prompt_template="promptbert")
        before, _, after = (
            NAMED[model.family.template("promptbert")].text.replace("{mask}", "[MASK]").partition("{text}")
        )
        assert model.as_read(["a dog"], "", 9)[0] == [f"{before}a dog.{after}"]
        assert model.as_read(["a dog?"], "", 9)[0] == [f"{before}a dog?{after}"]
        assert model.template.fill(model.tokenizer, ["a dog"], 9) == [f"{before}a dog{after}"]  # training adds none


def test_mistakes_are_refused_in_a_sentence(tmp_path):
    folder = str(save_tiny(tmp_path / "bert"))
    decoder = str(save_tiny(tmp_path / "t5", "t5"))
    for call, said in (
        (lambda: Template.of("{mask} is {text}"), "may stand in it once, behind {text}"),
        (lambda: Template.of("{text} {mask} {mask}"), "may stand in it once"),
        (lambda: load_model(folder, "mask", "always", prompt_template=TEMPLATES[0]), "which is embedded without one"),
        (lambda: load_model(folder, "mask"), "give --prompt_template with {mask} behind {text}, or promptbert"),
        (lambda: load_model(folder, "mask", prompt_template="a {text}"), "takes the vector of the mask token"),
        (lambda: Prompted(template=Template.of("a {text}")), "put {mask} in it"),
        (lambda: load_model(folder, "cls", prompt_template=TEMPLATES[0])(torch.ones(1, 3).long(), None), "needs"),
        (lambda: prompted(tmp_path / "one")(torch.ones(1, 3).long(), torch.ones(1, 3).long()), "a text has none"),
        (lambda: Contrastive(build_loss("focal"), views=VIEWS).attach(load_model(folder, "cls")), "with no temp"),
        (lambda: Contrastive(build_loss("focal"), views=VIEWS, max_seq_length=60).attach(prompted(tmp_path / "two")),
         "but this encoder takes 64"),
        (lambda: Contrastive(build_loss("focal"), views=[VIEWS[0], View()]).attach(prompted(tmp_path / "x")), "all"),
        (lambda: Contrastive(build_loss("focal"), views=[VIEWS[0], Repeat()]).attach(prompted(tmp_path / "y")), ""),
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            call()
        assert said in str(error.value), error.value
    model = load_model(decoder, "mean")
    model.tokenizer._special_tokens_map["mask_token"] = None
    with pytest.raises(UserError, match="holds a mask token, and the tokenizer"):
        Template.of(TEMPLATES[0]).tokens(model.tokenizer)
    assert set(CONFIGS) >= {"bert"}


# ---- the commands


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = write_inputs(tmp_path_factory.mktemp("prompt"))
    line = [*TRAIN.format(folder).split(), "--view", "prompt", "--learning_rate", "1e-3", "--max_seq_length", "12"]
    cli.run("train", [*line, "--view_templates", *TEMPLATES], script="run_unsup.py")
    return folder / "out"


def test_the_record_and_the_commands_know_the_template(trained, tmp_path, capsys):
    record = RunRecord.load(trained)
    assert record.model["prompt_template"] == TEMPLATES[0] and record.model["pooler"] == "mask"
    assert record.loss["templates"] == list(TEMPLATES) and record.loss["template_denoising"] is True
    assert "arxiv.org/abs/2201.04337" in record.loss["paper"] and "promptbert" in record.loss["citation"]
    card = (trained / "README.md").read_text()
    assert f"`{TEMPLATES[0]}`" in card and "mask_token_id" in card
    for folder in (trained, trained / "checkpoint-4"):
        model = load_model(str(folder))
        assert (model.template.text, model.pooler_name, model.projection_use) == (TEMPLATES[0], "mask", "training")
    cli.run("eval", ["--model_name_or_path", str(trained), "--eval_file", f"{trained.parent}/graded.tsv",
                     "--output_dir", str(tmp_path / "eval")])  # fmt: skip
    scores = Results.read(tmp_path / "eval/results.json")
    assert scores.scores["graded/file/all/spearman"] == pytest.approx(record.final["graded/file/all/spearman"])
    assert scores.metadata["model"]["prompt_template"] == TEMPLATES[0]
    capsys.readouterr()
    cli.run("inspect", [str(trained), f"{trained.parent}/text.txt", "--batch_size", "4"], script="focalcse inspect")
    assert capsys.readouterr().out


def test_an_export_embeds_as_its_card_says(trained, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="the files of sentence-transformers can say only what stands before a text"):
        export_model(trained, tmp_path / "hub")
    assert not (tmp_path / "hub").exists()
    onnx = find_spec("onnx") is not None and find_spec("onnxruntime") is not None
    folder, found = export_model(trained, tmp_path / "hub", sentence_transformers=False, onnx=onnx)
    assert min(found["transformers"], found.get("onnxruntime", 1.0)) > 1 - 1e-6
    code = (folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(folder)
    names: dict = {}
    exec(code, names)
    texts = ["A man plays the guitar.", "Someone makes music."]
    assert lowest_cosine(load_model(str(trained)).encode(texts), names["vectors"].numpy()) > 1 - 1e-6


def test_a_template_that_only_stands_before_a_text_is_exported_as_a_prompt(tmp_path):
    pytest.importorskip("sentence_transformers")
    folder = write_inputs(tmp_path)
    line = [*TRAIN.format(folder).split(), "--pooler", "mean", "--prompt_template", "the book of {text}"]
    cli.run("train", line, script="run_unsup.py")
    hub, found = export_model(folder / "out", tmp_path / "hub")
    assert min(found.values()) > 1 - 1e-6
    one, other = load_model(str(folder / "out")), load_model(str(hub))
    assert other.prompt == "the book of " and other.template is None
    assert lowest_cosine(one.encode(SENTENCES), other.encode(SENTENCES)) > 1 - 1e-6


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--view_templates a{text}{mask}", "--view_templates belongs to --view prompt"),
        ("--template_denoising no", "--template_denoising belongs to --view prompt"),
        ("--view prompt --mlp_only_train no", "--view prompt embeds without it"),
        ("--view prompt --pooler mean", "--view prompt pools the mask token of its templates, and --pooler is mean"),
        ("--view prompt --prompt_template a{text}", "name the template with --view_templates"),
        ("--view prompt --view_templates a{text}", "takes the vector of the mask token of a template"),
        ("--view prompt --view_templates a{text}{mask} b{text}{mask} c{text}{mask}", "has 3 values"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path, capsys, flags, said):
    folder = write_inputs(tmp_path)
    with pytest.raises(SystemExit):
        cli.run("train", [*TRAIN.format(folder).split(), *flags.split()], script="run_unsup.py")
    assert said in capsys.readouterr().err and not (folder / "out/run.json").exists()
