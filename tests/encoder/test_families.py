"""A family is one row: the class, its names and its parts come from it, and nothing else in the package knows it."""

import ast
import copy
import pickle
import subprocess
from pathlib import Path

import pytest
import torch
import transformers
from tiny import CONFIGS, FURTHER
from warm import COLD

import hf_focalcse
from hf_focalcse.encoder import auto
from hf_focalcse.encoder.auto import MODELS, make_class
from hf_focalcse.encoder.families import FAMILIES, Family
from hf_focalcse.encoder.hooks import zeroed

PACKAGE = Path(hf_focalcse.__file__).parent


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_class_is_made_from_the_row(family):
    kind = getattr(hf_focalcse, family.class_name)
    assert kind is getattr(auto, family.class_name) and kind.family is family
    assert kind is MODELS[getattr(transformers, f"{family.name}Config")]
    assert family.class_name in hf_focalcse.__all__
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert f"{family.name}{family.encoder}" in kind.__doc__
    assert issubclass(kind, getattr(transformers, f"{family.base or family.name}PreTrainedModel"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_row_names_parts_that_are_there(family):
    config = next(config for config in (CONFIGS | FURTHER).values() if type(config).__name__ == f"{family.name}Config")
    model = MODELS[type(config)](copy.deepcopy(config))
    assert set(family.dropout) == {
        name
        for name in vars(config)
        if name.endswith(("dropout", "dropout_prob", "dropout_rate"))
        and not name.startswith(("classifier", "seq_classif", "qa", "summary_last", "pooler"))
    }
    assert isinstance(model.projection_linear, torch.nn.Linear)
    assert model.encoder_has_pooler == (getattr(model.encoder, "pooler", None) is not None)
    assert (model._last_output is not None) == (family.after_attention is not None)
    ids = torch.tensor([[2, 7, 8, 3]])
    model.eval()
    nothing = torch.zeros(1, 4, 1, dtype=torch.bool)
    with torch.no_grad(), zeroed(model._embeddings, nothing):
        layers = model.encoder(ids, torch.ones_like(ids), output_hidden_states=True).hidden_states
    assert not layers[0].any() and layers[0].shape == (1, 4, config.hidden_size)
    assert len(layers) == config.num_hidden_layers + 1


def known_families(source: str) -> set[str]:
    """Names of families that the code of a module mentions: their classes, and their types as strings."""
    types = {config.model_type for config in MODELS}
    classes = {f"{f.name}{end}" for f in FAMILIES for end in ("Config", "Model", "PreTrainedModel", "ForFocalCL")}
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id in classes:
            found.add(node.id)
        elif isinstance(node, (ast.Attribute, ast.alias)):
            name = node.attr if isinstance(node, ast.Attribute) else node.name
            found |= {name} & classes
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & (types | classes)
    return found


def test_nothing_else_in_the_package_knows_a_family():
    sources = {file: file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py") if file.name != "families.py"}
    found = {file.name: names for file, source in sources.items() if (names := known_families(source))}
    assert not found
    assert known_families("if model.config.model_type == 'albert': pass") == {"albert"}  # it can fail
    assert known_families("from transformers import BertModel") == {"BertModel"}


def test_a_row_is_enough():
    """Another row of ALBERT, made here, gives a class that embeds."""
    row = Family("Albert", embeddings=("encoder.embedding_hidden_mapping_in",))  # its projection in a side file
    model = make_class(row)(copy.deepcopy(CONFIGS["albert"])).eval()
    assert not model.encoder_has_pooler and model.encoder.pooler is not None
    ids = torch.tensor([[2, 7, 3, 0], [2, 8, 9, 3]])
    vectors = model(ids, (ids > 0).long())
    model.set_pooling("cls", "always")
    expected = torch.tanh(model.mlp.dense(vectors))
    torch.testing.assert_close(model(ids, (ids > 0).long()), expected)


def test_the_names_are_known_without_torch():
    code = "import sys, hf_focalcse; assert 'AlbertForFocalCL' in hf_focalcse.__all__; print('torch' in sys.modules)"
    done = subprocess.run([COLD, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "False", done.stderr
