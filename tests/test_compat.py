"""One canary for each private name of another library: it fails when the name goes, and says what breaks here then.

The last tests find such names anywhere else in the package.
"""

import argparse
import ast
import importlib
import inspect
from pathlib import Path

import pytest
import torch
from accelerate.utils import extract_model_from_parallel
from torch import nn
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

import hf_focalcse
from hf_focalcse import compat

PACKAGE = Path(hf_focalcse.__file__).parent
TINY = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}


# ---- torch


def test_softmax_backward():
    """Without torch._softmax_backward_data the attention over packed sentences has no backward."""
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    output = scores.softmax(-1)
    gradient = torch.randn(3, 5, dtype=torch.float64)
    expected = torch.autograd.grad(output, scores, gradient)[0]
    torch.testing.assert_close(compat.softmax_backward(gradient, output.detach()), expected)


def test_checkpointed_layers_are_known():
    """Without _checkpoint_wrapped_module the last layer is cut in forward and not when backward runs it again."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    assert compat.is_rerun_in_backward(checkpoint_wrapper(nn.Linear(1, 1)))
    assert not compat.is_rerun_in_backward(nn.Linear(1, 1))


# ---- accelerate


def test_forward_without_autocast(monkeypatch):
    """Without _original_forward, scores of the dev set in a bf16 run are computed in bfloat16."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    for state in (AcceleratorState, PartialState):  # shared by all Accelerators of a process, other tests' among them
        monkeypatch.setattr(state, "_shared_state", {})

    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(x).dtype

    plain = Seen()
    model = Accelerator(mixed_precision="bf16", cpu=True).prepare_model(plain)
    assert "_original_forward" in model.__dict__, "accelerate keeps the plain forward elsewhere: see plain_forward"
    x = torch.ones(1, 2)
    with torch.no_grad():
        assert model(x) == torch.bfloat16
        with compat.plain_forward(model):
            assert model(x) == torch.float32
        assert model(x) == torch.bfloat16
    assert extract_model_from_parallel(model) is plain


# ---- transformers: models


def test_attention_of_a_config():
    """Without _attn_implementation sentences are no longer packed, and the log names no attention kernel."""
    config = BertConfig(**TINY)
    model = BertModel(config)
    assert compat.attention_name(model.config) == "sdpa"
    compat.set_attention(model.config, "eager")
    layer = model.encoder.layer[0].attention.self
    assert layer.config._attn_implementation == "eager", "layers no longer read the attention of the model's config"


def test_generic_weights():
    """Without PreTrainedModel._init_weights(module), the projection in a side file is uninitialised memory."""
    model, linear = BertModel(BertConfig(**TINY)), nn.Linear(400, 400)
    nn.init.constant_(linear.weight, 9.0)
    compat.draw_generic_weights(model, linear)
    assert linear.weight.std().item() == pytest.approx(0.02, rel=0.05) and not linear.bias.any()


def test_auto_class():
    """Without _BaseAutoModelClass and _LazyAutoMapping there is no AutoModelForFocalCL."""
    base, mapping = compat.auto_class_parts()

    class OtherConfig(BertConfig):
        model_type = "compat-canary"

    class OtherModel(BertModel):
        config_class = OtherConfig

    auto = type("AutoOther", (base,), {"_model_mapping": mapping})
    auto.register(OtherConfig, OtherModel, exist_ok=True)
    assert type(auto.from_config(OtherConfig(**TINY))) is OtherModel


def test_find_file(tmp_path):
    """Without _raise_exceptions_for_missing_entries a folder without a side file or modules.json raises OSError."""
    (tmp_path / "there.json").write_text("{}")
    assert compat.find_file(str(tmp_path), "there.json") == str(tmp_path / "there.json")
    assert compat.find_file(str(tmp_path), "not_there.json") is None


def test_no_deepspeed_config():
    """Without _hf_deepspeed_config_weak_ref a model is sharded while it is loaded under ZeRO-3."""
    from transformers.integrations import deepspeed

    class Config:
        def is_zero3(self):
            return True

    config = Config()
    deepspeed.set_hf_deepspeed_config(config)
    try:
        assert deepspeed.is_deepspeed_zero3_enabled()
        with compat.no_deepspeed_config():
            assert not deepspeed.is_deepspeed_zero3_enabled()
        assert deepspeed.is_deepspeed_zero3_enabled()
    finally:
        deepspeed.unset_hf_deepspeed_config()


# ---- transformers: Trainer


def test_save_unpublished(tmp_path):
    """Without _internal_call the end of a run pushes the training folder before run.json is in it."""
    pushed = []

    class Pushing(Trainer):
        def push_to_hub(self, *args, **kwargs):
            pushed.append(args)

        def init_hf_repo(self, *args, **kwargs):
            pass

    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, push_to_hub=True, report_to=[])
    trainer = Pushing(BertModel(BertConfig(**TINY)), args)
    compat.save_unpublished(trainer, tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").is_file() and not pushed
    trainer.save_model(str(tmp_path / "out"))
    assert pushed, "the call is seen to push where the argument is not given"


def test_train_dataloader(tmp_path):
    """Without _get_dataloader and _train_batch_size the last batch of several ranks cannot be filled with padding."""
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=2, report_to=[])
    rows = [{"input_ids": [i]} for i in range(4)]
    trainer = Trainer(BertModel(BertConfig(**TINY)), args, train_dataset=rows)
    loader = compat.train_dataloader_by(trainer, rows, lambda dataset: [3, 1, 0, 2])
    assert [batch["input_ids"].flatten().tolist() for batch in loader] == [[3, 1], [0, 2]]


def test_loss_since_the_last_log_line():
    """Without Trainer's _tr_loss and _globalstep_last_logged, a resumed run logs another loss than an uninterrupted
    one."""
    source = inspect.getsource(Trainer)
    assert "self._tr_loss = torch.tensor" in source and "self._tr_loss += tr_loss_step" in source
    assert "self._globalstep_last_logged = self.state.global_step" in source


def test_weights_that_files_leave_out():
    """Without _keys_to_ignore_on_save, a checkpoint whose projection lies in a side file is refused."""
    model = BertModel(BertConfig(**TINY))
    compat.keep_out_of_files(model, ["head.weight"])
    assert compat.kept_out_of_files(model)[-1] == "head.weight"


@pytest.mark.parametrize("name", compat.OVERRIDDEN)
def test_overridden_names_are_there(name):
    row = compat.OVERRIDDEN[name]
    module, _, owner = row.owner.rpartition(".")
    found = getattr(getattr(importlib.import_module(module), owner), name, name)
    assert found is not name, f"{row.owner} has no {name} any more: {row.breaks}"
    if row.parameters is not None:
        parameters = tuple(inspect.signature(found).parameters)[1:]
        assert parameters == row.parameters, f"{row.owner}.{name} is called otherwise: {row.breaks}"


def test_operators_of_deepspeed(monkeypatch):
    """Without ops.__compatible_ops__ every DeepSpeed run without a GPU first compiles an operator for minutes."""
    deepspeed = pytest.importorskip("deepspeed")
    monkeypatch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", True)
    compat.leave_out_shared_memory_operator()
    assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False


# ---- huggingface_hub


def test_client_of_the_hub():
    client = compat.new_hub_client()
    assert {"request", "response"} <= set(client.event_hooks) and client.follow_redirects


# ---- argparse


def test_arguments_of_a_parser():
    """Without argparse's _actions and _option_string_actions no mistyped flag gets a suggestion."""
    parser = argparse.ArgumentParser(add_help=False)
    flag = parser.add_argument("--some_flag", "-s")
    assert compat.actions_of(parser) == [flag]
    assert compat.actions_by_flag(parser) == {"--some_flag": flag, "-s": flag}


# ---- nowhere else

LIBRARIES = ("transformers", "accelerate", "torch", "peft")
READ_BY_NAME = {"getattr", "hasattr", "setattr", "delattr", "attrgetter"}
DOCUMENTED = {("os", "_exit"), ("sys", "_getframe")}  # with a leading underscore, and public all the same


def is_private(name: str | None) -> bool:
    return bool(name) and name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


def defined_names(tree: ast.AST) -> set[str]:
    """Private names that a module defines: functions, classes, their attributes, parameters, and ``self._x = …``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def foreign_private(source: str, ours: set[str]) -> list[str]:
    """Private names of other libraries that a module uses, as ``line: what``; ours: the names that are our own.

    A name of `OVERRIDDEN` may be defined in a class and called through ``super()``, and nothing else.
    """
    tree = ast.parse(source)
    ours = ours - set(compat.OVERRIDDEN)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [(node, f"from {node.module} import {name}") for name in names if is_private(name)]
        elif isinstance(node, ast.Import):
            found += [(node, f"import {a.name}") for a in node.names if any(map(is_private, a.name.split(".")))]
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in ours:
            by_super = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
            documented = isinstance(node.value, ast.Name) and (node.value.id, node.attr) in DOCUMENTED
            if not documented and not (by_super and node.attr in compat.OVERRIDDEN):
                found.append((node, ast.unparse(node)))
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func).rpartition(".")[2]
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if function in READ_BY_NAME or "__dict__" in ast.unparse(node.func):
                found += [(node, f"{function}({text!r})") for text in texts if is_private(text) and text not in ours]
            found += [
                (node, f"{function}({k.arg}=…)") for k in node.keywords if is_private(k.arg) and k.arg not in ours
            ]
        elif isinstance(node, ast.Subscript) and "__dict__" in ast.unparse(node.value):
            text = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if isinstance(text, str) and is_private(text) and text not in ours:
                found.append((node, ast.unparse(node)))
        elif isinstance(node, ast.Compare) and any("__dict__" in ast.unparse(c) for c in node.comparators):
            text = node.left.value if isinstance(node.left, ast.Constant) else None
            if isinstance(text, str) and is_private(text) and text not in ours:
                found.append((node, ast.unparse(node)))
    return [f"{node.lineno}: {what}" for node, what in found]


def package_sources() -> dict[str, str]:
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(file.relative_to(PACKAGE)): file.read_text(encoding="utf-8") for file in files}


def test_private_names_of_others_are_used_in_compat_alone():
    sources = package_sources()
    ours = {name for source in sources.values() for name in defined_names(ast.parse(source))}
    found = {name: bad for name, source in sources.items() if (bad := foreign_private(source, ours))}
    assert set(found) == {"compat.py"}, f"move these into hf_focalcse/compat.py: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "from transformers.trainer import _is_peft_model",
        "from torch._dynamo import config",
        "import torch._dynamo",
        "import torch\ntorch._softmax_backward_data()",
        "def f(config):\n    config._attn_implementation = 'sdpa'",
        "def f(model):\n    return getattr(model, '_tied_weights_keys', None)",
        "def f(model):\n    return hasattr(model, '_hf_hook')",
        "def f(model):\n    return model.__dict__.pop('_original_forward', None)",
        "def f(model):\n    return '_original_forward' in model.__dict__",
        "def f(model):\n    return model.__dict__['_original_forward']",
        "def f(trainer):\n    trainer.save_model(_internal_call=True)",
        "class T:\n    def f(self):\n        self._train_batch_size + 1",
        "class T:\n    def f(self):\n        super()._inner_training_loop()",
        "class T:\n    def _save_checkpoint(self):\n        self.other._save_checkpoint()",
    ],
)
def test_the_finder_finds(source):
    assert foreign_private(source, defined_names(ast.parse(source))), source


@pytest.mark.parametrize(
    "source",
    [
        "from .pairs import _gather",
        "import os\nos._exit(1)",
        "class T:\n    def _save_checkpoint(self):\n        super()._save_checkpoint()",
        "class T:\n    def f(self, other):\n        self._seconds = other._seconds",
        "class T:\n    _table = {}\n    def f(self):\n        return self._table, getattr(self, '_table')",
        "def _first(x):\n    return x.__dict__, x.__class__",
    ],
)
def test_the_finder_leaves_our_own_alone(source):
    assert not foreign_private(source, defined_names(ast.parse(source))), source


def classes_of(module) -> list[type]:
    return [
        found for found in vars(module).values() if isinstance(found, type) and found.__module__ == module.__name__
    ]


def accidental(kind: type) -> set[str]:
    """Private names that a class of ours defines and a class of another library that it derives from has, too."""
    others = [base for base in kind.__mro__ if base.__module__.split(".")[0] in LIBRARIES]
    taken = {name for base in others for name in vars(base)}
    mine = {name for base in kind.__mro__ if base.__module__.startswith("hf_focalcse") for name in vars(base)}
    made = {"_backward_cls", "_abc_impl"}  # by the metaclasses of torch.autograd.Function and of abstract classes
    return {name for name in mine & taken if is_private(name)} - set(compat.OVERRIDDEN) - made


def test_no_class_overrides_a_private_name_unawares():
    """A name of ours that another library has taken would replace its meaning there without a word."""
    for name in package_sources():
        if name.endswith("__main__.py") or "sts_correlation" in name:
            continue
        parts = ["hf_focalcse", *Path(name).with_suffix("").parts]
        module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        for kind in classes_of(module):
            assert not accidental(kind), f"{kind.__module__}.{kind.__name__} overrides {accidental(kind)}"


def test_an_unaware_override_is_found():
    kind = type("Ours", (Trainer,), {"_maybe_log_save_evaluate": None, "__module__": "hf_focalcse.made_up"})
    assert accidental(kind) == {"_maybe_log_save_evaluate"}
