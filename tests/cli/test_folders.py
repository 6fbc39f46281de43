"""Folders of encoders that are wrong, damaged or of something else: each is refused in one sentence, and no code that
lies in one is ever run."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import SENTENCES, record_mean, save_tiny

from hf_focalcse.cli import main as cli

POOLING, PROMPTS = "1_Pooling/config.json", "config_sentence_transformers.json"
LENGTHS, DENSE = "sentence_bert_config.json", "2_Dense/config.json"
SIZES = {"in_features": 16, "out_features": 8, "activation_function": "torch.nn.modules.linear.Identity"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with an encoder of Transformer + Pooling + Dense, graded pairs and text."""
    folder = tmp_path_factory.mktemp("folders")
    base = record_mean(save_tiny(folder / "base"))
    (base / "2_Dense").mkdir()
    (base / DENSE).write_text(json.dumps(SIZES))
    weights = {"linear.weight": torch.ones(8, 16), "linear.bias": torch.zeros(8)}
    save_file(weights, base / "2_Dense/model.safetensors", metadata={"format": "pt"})
    edit(
        base,
        "modules.json",
        lambda rows: rows.append({"path": "2_Dense", "type": "sentence_transformers.models.Dense"}),
    )
    rows = [f"{a}\t{b}\t{abs(i - j)}" for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)]
    (folder / "graded.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    (folder / "text.txt").write_text("\n".join(f"{text} {i}" for i in range(4) for text in SENTENCES))
    return folder


def edit(folder: Path, file: str, change):
    """Change what a JSON file holds; ``change`` alters it in place, or returns something else."""
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content if (new := change(content)) is None or new is content else new))


def set_to(file: str, **values):
    return lambda folder: edit(folder, file, lambda content: content.update(values))


def replaced(file: str, content):
    return lambda folder: edit(folder, file, lambda _: content)


def cut(file: str, to: float = 0.5):
    def halve(folder: Path):
        whole = (folder / file).read_bytes()
        (folder / file).write_bytes(whole[: int(len(whole) * to)])

    return halve


def row(number: int, **values):
    return lambda folder: edit(folder, "modules.json", lambda rows: rows[number].update(values))


def weights(change, file: str = "model.safetensors"):
    return lambda folder: save_file(change(load_file(folder / file)), folder / file, metadata={"format": "pt"})


def without(folder: Path, *files: str):
    for file in files:
        (folder / file).unlink()


def scores_pairs(folder: Path):
    without(folder, "modules.json")
    set_to("config.json", architectures=["BertForSequenceClassification"], id2label={"0": "LABEL_0"})(folder)


def static(folder: Path):
    row(0, type="sentence_transformers.models.StaticEmbedding")(folder)
    replaced("config.json", {"model_type": "model2vec"})(folder)


def causal(folder: Path):
    set_to("config.json", is_decoder=True)(folder)
    replaced(POOLING, {"pooling_mode_cls_token": True})(folder)


def averaged(folder: Path):
    edit(folder, "modules.json", lambda rows: rows.insert(1, rows[2] | {
        "type": "sentence_transformers.models.WeightedLayerPooling"}))  # fmt: skip


def other_weights(*files: str):
    """No safetensors, but weights for other libraries."""

    def change(folder: Path):
        without(folder, "model.safetensors")
        for file in files:
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(b"weights")

    return change


def pointer(file: str):
    """What a clone without Git LFS leaves in the place of a file."""
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    return lambda folder: (folder / file).write_text(text)


WRONG = [  # (what is done to the folder, what is said)
    (set_to(PROMPTS, prompts=["query: "]), "has prompts ['query: ']; it must be a mapping"),
    (set_to(PROMPTS, prompts={"query": 3}), "has prompts with 'query' 3; each must be a text"),
    (set_to(PROMPTS, default_prompt_name=["q"]), "has default_prompt_name ['q']; it must be a text"),
    (set_to(PROMPTS, truncate_dim="all"), "has truncate_dim 'all'; it must be a whole number from 1"),
    (set_to(PROMPTS, truncate_dim=0), "has truncate_dim 0; it must be a whole number from 1"),
    (set_to(PROMPTS, similarity_fn_name="cosin"), "compares by 'cosin'; it must be one of cosine"),
    (set_to(PROMPTS, model_type="CrossEncoder"), "describes a CrossEncoder, which is not a SentenceTransformer"),
    (replaced(PROMPTS, [1]), "config_sentence_transformers.json of 'broken' must be a mapping, not [1]"),
    (set_to(LENGTHS, max_seq_length="long"), "has max_seq_length 'long'; it must be a number from 1"),
    (set_to(LENGTHS, max_seq_length=-1), "has max_seq_length -1; it must be a number from 1"),
    (set_to(LENGTHS, do_lower_case="yes"), "has do_lower_case 'yes'; it must be true or false"),
    (set_to(LENGTHS, model_args=["x"]), "has model_args ['x']; it must be a mapping"),
    (set_to(POOLING, pooling_mode=3), "has pooling_mode 3; it must be a name or a list of names"),
    (set_to(POOLING, pooling_mode=["mean", "centre"]), "pools as 'centre'"),
    (set_to(POOLING, include_prompt="no"), "has include_prompt 'no'; it must be true or false"),
    (set_to(POOLING, pooling_mode_max_tokens="false"), "has pooling_mode_max_tokens 'false'"),
    (cut(POOLING), "1_Pooling/config.json of 'broken' is not valid JSON"),
    (lambda folder: without(folder, POOLING), "'broken' has no 1_Pooling/config.json, which says how it pools"),
    (set_to(DENSE, out_features=None), "has no out_features, which must be a whole number from 1"),
    (set_to(DENSE, in_features="16"), "has in_features '16'; it must be a whole number from 1"),
    (set_to(DENSE, in_features=12), "takes vectors of 12 dimensions, this pooler gives 16"),
    (cut("2_Dense/model.safetensors"), "2_Dense/model.safetensors is damaged"),
    (weights(lambda w: {"linear.weight": w["linear.weight"]}, "2_Dense/model.safetensors"), "of 'broken' must hold"),
    (lambda folder: without(folder, "2_Dense/model.safetensors"), "but holds nothing; copy it again"),
    (replaced("modules.json", []), "must be a list of modules"),
    (replaced("modules.json", {"0": "Transformer"}), "must be a list of modules"),
    (row(1, type=None), "modules.json of 'broken' has no type, which must be a text"),
    (row(1, path=7), "has path 7; it must be a text"),
    (row(2, path="../elsewhere"), "names the folder '../elsewhere', which lies outside"),
    (row(2, type="sentence_transformers.models.CLIPModel"), "CLIPModel has no counterpart here"),
    (row(2, type="stella.Dense"), "'stella.Dense', which is code of its own and is never run"),
    (row(0, type="sentence_transformers.sparse_encoder.models.MLMTransformer"), "MLMTransformer has no counterpart"),
    (row(0, type="sentence_transformers.models.Router"), "Router has no counterpart here"),
    (static, "StaticEmbedding has no counterpart here"),
    (averaged, 'its config.json lacks "output_hidden_states": true'),
    (scores_pairs, "'broken' is a CrossEncoder (BertForSequenceClassification), which scores pairs"),
    (causal, "so that its first token, which pooler cls_before_pooler takes, is the same for every text"),
    (set_to("config.json", model_type="new", auto_map={"AutoModel": "m.N"}), "of type 'new' needs code that lies"),
    (set_to("config.json", position_embedding_type="relative_key"), "has positions of the type 'relative_key'"),
    (set_to("config.json", hidden_size="wide"), "config.json of 'broken' cannot be used"),
    (set_to("config.json", num_attention_heads=3), "could not be loaded"),
    (replaced("config.json", ["bert"]), "config.json of 'broken' must be a mapping, not ['bert']"),
    (cut("config.json"), "config.json of 'broken' is not valid JSON"),
    (cut("tokenizer.json"), "the tokenizer of 'broken' is damaged"),
    (replaced("tokenizer_config.json", 5), "the tokenizer of 'broken' is damaged"),
    (cut("model.safetensors", 0.01), "the weights of 'broken' could not be loaded"),
    (set_to(LENGTHS, max_seq_length=2), "reads 2 tokens of a text .*, of which 2 are special ones"),
    (set_to("config.json", quantization_config={"quant_method": "gptq", "bits": 4}), "of few bits .*gptq"),
    (set_to("config.json", quantization_config={"quant_method": "bitsandbytes"}), "of few bits .*bitsandbytes"),
    (weights(lambda w: w | {"encoder.layer.0.output.dense.bias": torch.full((16,), torch.nan)}),
     "the weight 'bert.encoder.layer.0.output.dense.bias' of 'broken' holds NaN or infinity"),
    (weights(lambda w: {key: -value / 0 for key, value in w.items()}, "2_Dense/model.safetensors"),
     "the weight 'tail.0.linear.weight' of 'broken' holds NaN or infinity"),
    (other_weights(), "has no weights as safetensors; take model.safetensors from"),
    (other_weights("tf_model.h5", "onnx/model.onnx"), "only tf_model.h5, onnx/model.onnx, from which no training"),
    (pointer("model.safetensors"), "model.safetensors is not the file itself but the pointer of Git LFS to it"),
    (pointer("tokenizer.json"), "tokenizer.json is not the file itself but the pointer of Git LFS to it"),
    (pointer("2_Dense/model.safetensors"), "2_Dense/model.safetensors is not the file itself but the pointer"),
    (weights(lambda w: {f"0.auto_model.{key}": value for key, value in w.items()}), "lacks 37 weights"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)), ids=lambda i: str(WRONG[i][1])[:60])
def test_a_wrong_folder_is_refused_in_one_sentence(place, tmp_path, monkeypatch, capsys, number):
    change, message = WRONG[number]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / "base", "broken")
    shutil.copy(place / "graded.tsv", "graded.tsv")
    change(Path("broken"))
    with pytest.raises(SystemExit) as end:
        cli.run("eval", ["--model_name_or_path", "broken", "--eval_file", "graded.tsv"])
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    first, _, second = message.partition(".*")
    assert end.value.code == 2 and len(said) == 1 and first in said[0] and second in said[0], said


# ---- code in a folder


CODE = """open({ran!r}, "a").write("x")
from transformers import BertConfig, BertModel, BertTokenizerFast
class Config(BertConfig):
    model_type = "own"
class Model(BertModel):
    config_class = Config
class Fast(BertTokenizerFast):
    pass
"""
AUTO = {"AutoConfig": "own.Config", "AutoModel": "own.Model", "AutoTokenizer": [None, "own.Fast"]}
LINES = {  # every command that loads an encoder, by itself or in a part of its work
    "eval": ["--model_name_or_path code --eval_file graded.tsv", "code --tasks rerank --rerank_file rerank.tsv"],
    "train": [
        "--model_name_or_path code --train_file text.txt --max_steps 1 --eval_strategy no --use_cpu "
        "--per_device_train_batch_size 8 --output_dir out",
        "--model_name_or_path base --train_file text.txt --max_steps 1 --eval_strategy no --use_cpu --loss dclr "
        "--per_device_train_batch_size 8 --output_dir other --reference_model code",
    ],
    "inspect": ["code text.txt"],
    "export": ["code"],
    "merge": ["base code --output_dir merged", "code base --output_dir merged"],
}
LOADS_NOTHING = {"table", "compare", "report", "sweep", "reproduce", "push"}  # the last three start others, which load


def own_code(folder: Path, model_type: str, where: str):
    """Code of its own, which leaves a file RAN when it is run, where a folder can name it."""
    (folder / "own.py").write_text(CODE.format(ran=str(folder / "RAN")))
    if where == "config.json":
        set_to("config.json", model_type=model_type, auto_map=AUTO)(folder)
    elif where == "tokenizer_config.json":
        set_to(where, auto_map={"AutoTokenizer": [None, "own.Fast"]}, tokenizer_class="Fast")(folder)
    else:
        row(0, type="own.Model")(folder)


@pytest.mark.parametrize(
    ("model_type", "where"),
    [("own", "config.json"), ("bert", "config.json"), ("bert", "tokenizer_config.json"), ("bert", "modules.json")],
)
def test_no_command_runs_code_of_a_folder_or_asks_to(place, tmp_path, monkeypatch, capsys, model_type, where):
    asked = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    monkeypatch.setenv("HF_TOKEN", "hf_nothing")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place, ".", dirs_exist_ok=True)
    Path("rerank.tsv").write_text("qid\tlabel\tquery\tcandidate\n1\t1\ta dog\tthe dog\n1\t0\ta dog\ta book\n")
    assert cli.COMMANDS.keys() <= LINES.keys() | LOADS_NOTHING, "add a line for the new command"
    ends = []
    for command in cli.COMMANDS.keys() & LINES.keys() if where == "config.json" else ("eval",):
        for line in LINES[command]:
            shutil.rmtree("code", ignore_errors=True)
            shutil.copytree("base", "code")
            own_code(Path("code").resolve(), model_type, where)
            try:
                cli.run(command, line.split())
                ends.append(0)
            except SystemExit as end:
                ends.append(end.code)
            assert not asked and not Path("code/RAN").exists(), (command, line)
    said = capsys.readouterr().err
    assert set(ends) <= {0, 2} and "Traceback" not in said
    if where == "config.json" and model_type == "own":
        assert said.count("needs code that lies beside it") == len(ends)
    if where == "modules.json":
        assert said.count("is code of its own and is never run") == len(ends)


def test_the_code_would_leave_a_file(tmp_path):
    """What the test above looks for: with trust it is there."""
    from transformers import AutoConfig

    own_code(save_tiny(tmp_path / "code"), "own", "config.json")
    AutoConfig.from_pretrained(tmp_path / "code", trust_remote_code=True)
    assert (tmp_path / "code/RAN").exists()
