"""Sentence encoders for contrastive training: token ids (B, V, L) -> embeddings (B, V, D), and ``encode(texts)``.

One mixin on the encoders of transformers. Where an encoder has a pooler of Linear+tanh on [CLS], that is the training
projection, so that a checkpoint is a plain encoder for everyone else; elsewhere the projection lies in a side file.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from tqdm.auto import tqdm
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertPreTrainedModel,
    DistilBertConfig,
    DistilBertModel,
    DistilBertPreTrainedModel,
    ElectraConfig,
    ElectraModel,
    ElectraPreTrainedModel,
    ModernBertConfig,
    ModernBertModel,
    ModernBertPreTrainedModel,
    MPNetConfig,
    MPNetModel,
    MPNetPreTrainedModel,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaModel,
    RobertaPreTrainedModel,
    XLMRobertaConfig,
    XLMRobertaModel,
    XLMRobertaPreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from ..compat import (
    attention_name,
    auto_class_parts,
    draw_generic_weights,
    find_file,
    is_rerun_in_backward,
    plain_forward,
    set_attention,
)
from ..data.views import pad, token_ids
from ..errors import UserError
from .augment import Augmentation, Drawn, Dropout, draw_views
from .packing import ATTENTION, Packed, use_fast_dropout
from .poolers import POOLERS, resolve_pooler

logger = transformers_logging.get_logger(__name__)
HEAD_FILE = "focal_head.safetensors"
VOCABULARY_FILES = (  # one of these is in every folder with a tokenizer
    *("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
)
PROJECTION_USES = ("training", "always", "none")
DROPOUT_ATTRIBUTES = (  # BERT, RoBERTa, MPNet, ELECTRA, XLM-R; DistilBERT; ModernBERT
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
)
NOTHING_DRAWN = Drawn()
TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
TOKENISED_TOGETHER = 4096  # sentences of `encode`: padding adds 1.8 % to the tokens of STS then, 0.9 % if it were all
ROWS_PER_CHUNK = 64  # rows of similar length that go through the encoder together when no chunk size is asked for
PACKABLE = ("bert", "roberta", "xlm-roberta", "electra", "distilbert")  # take positions and hand ``runs`` to attention


def give_back_memory(gradient: Tensor | None = None) -> None:
    """Return what is free in the C library's heap to the system, where that is glibc. A tensor's hook.

    Without it chunks, each of another size than the one before and pinned by its small result, add to the peak.
    """
    if TRIM is not None:
        TRIM(0)


class Projection(nn.Module):
    """Linear and tanh, (…, D) -> (…, D), for encoders that have no such pooler of their own."""

    def __init__(self, size: int):
        super().__init__()
        self.dense = nn.Linear(size, size)

    def forward(self, vectors: Tensor) -> Tensor:
        return torch.tanh(self.dense(vectors))


if TYPE_CHECKING:
    _Base = PreTrainedModel
else:
    _Base = object


class FocalCLMixin(_Base):
    """What every ``…ForFocalCL`` class shares. The pooling lies in ``config.focal_cl``:

    pooler: a row of `POOLERS`. projection: when the pooled vector passes the projection: "training" (trained with it,
    embedded without it: SimCSE's mlp_only_train), "always" or "none".
    """

    accepts_loss_kwargs = False  # else Trainer leaves the division by accumulation steps to us
    encoder_class: type[nn.Module]
    encoder_has_pooler: bool

    def __init__(self, config: PretrainedConfig):
        super().__init__(config)
        options = {"add_pooling_layer": True} if self.encoder_has_pooler else {}
        setattr(self, self.base_model_prefix, self.encoder_class(config, **options))
        if not self.encoder_has_pooler:
            self.mlp = Projection(config.hidden_size)
        use_fast_dropout(self)
        if config.model_type in PACKABLE and attention_name(config) == "sdpa":
            set_attention(config, ATTENTION)  # sdpa, but for sentences that are packed
        record = getattr(config, "focal_cl", None) or {}
        self.pooling_is_said = bool(record)
        self.chunk_size: int | None = None
        self.packing = True  # whether sentences are packed where that is possible, see `packs`
        self.recomputing = False  # whether layers are going to be run again in backward
        self.compiling = False  # whether torch.compile has the encoder; then its shapes and modules stay as they are
        self.augmentations: tuple[Augmentation, ...] = ()  # one a view; none: the encoder's dropout alone
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self.post_init()
        self.set_pooling(record.get("pooler", "cls"), record.get("projection"))

    @property
    def encoder(self) -> Any:
        return getattr(self, self.base_model_prefix)

    # ---- pooling and projection

    def set_pooling(self, pooler: str, projection: str | None = None) -> None:
        """Choose the pooler and the use of the projection (default: "training" for ``cls``, "none" for the others).

        Written into ``config.focal_cl``. Parameters of a projection that is not used get no gradient.

        Raises:
            UserError: an unknown pooler or use, or a projection on a pooler that has none.
        """
        self.pooler_name = resolve_pooler(pooler)
        has_projection = POOLERS[self.pooler_name].projection
        projection = projection or ("training" if has_projection else "none")
        if projection not in PROJECTION_USES:
            raise UserError(f"projection use {projection!r} is not one of {', '.join(PROJECTION_USES)}")
        if projection != "none" and not has_projection:
            raise UserError(f"pooler {self.pooler_name!r} has no projection; use 'cls', or projection 'none'")
        self.projection_use = projection
        for parameter in self.projection_linear.parameters():
            parameter.requires_grad_(projection != "none")
        self.config.focal_cl = (getattr(self.config, "focal_cl", None) or {}) | {
            "pooler": self.pooler_name,
            "projection": projection,
        }

    @property
    def projection_linear(self) -> nn.Linear:
        """The projection's Linear: the encoder's own pooler or the side head."""
        return self.encoder.pooler.dense if self.encoder_has_pooler else self.mlp.dense

    def reset_projection(self, generator: torch.Generator | None = None) -> None:
        """Draw the projection anew, as SimCSE does: a pretrained pooler was trained for another task."""
        linear = self.projection_linear
        nn.init.normal_(linear.weight, std=getattr(self.config, "initializer_range", 0.02), generator=generator)
        nn.init.zeros_(linear.bias)

    def dropout_rates(self) -> dict[str, float]:
        """The dropout rates of the encoder by their names in its config."""
        return {name: getattr(self.config, name) for name in DROPOUT_ATTRIBUTES if hasattr(self.config, name)}

    @property
    def augmented(self) -> bool:
        """Whether an augmentation makes the views differ, beyond dropout."""
        return any(not isinstance(augmentation, Dropout) for augmentation in self.augmentations)

    @property
    def cut(self) -> bool:
        """Whether an augmentation sets parts of the embedding layer's output to zero."""
        return any(augmentation.cuts for augmentation in self.augmentations)

    # ---- forward

    @torch.compiler.disable(recursive=False)  # of what follows the encoder alone is worth compiling
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Ids and mask (B, V, L) -> embeddings (B, V, D); or (B, L) -> (B, D).

        Rows are grouped by length, and every group is trimmed to its own longest row or packed without padding. With
        ``chunk_size`` set, a group has that many rows and is checkpointed in training: one group's activations live at
        a time, and dropout is replayed. Padding is expected on the right. In training ``augmentations`` change views.
        """
        drawn = NOTHING_DRAWN
        if self.training and self.augmentations:
            drawn = draw_views(self.augmentations, attention_mask, self.config.hidden_size)
        *leading, length = input_ids.shape
        ids, mask = input_ids.reshape(-1, length), attention_mask.reshape(-1, length)  # (B*V, L)
        lengths = mask.sum(1)
        order = torch.argsort(lengths, descending=True, stable=True)
        pieces = []
        for rows in order.split(self.chunk_size or self.rows_per_group(len(ids))):
            longest = max(int(lengths[rows[0]]), 1)
            chunk = ids[rows, :longest], mask[rows, :longest], drawn.of(rows, longest)
            if self.chunk_size and torch.is_grad_enabled():
                pieces.append(checkpoint(self.embed, *chunk, use_reentrant=False))
                if self.device.type == "cpu":
                    give_back_memory()
                    if pieces[-1].requires_grad:  # and before its backward, which begins with this gradient
                        pieces[-1].register_hook(give_back_memory)
            else:
                pieces.append(self.embed(*chunk))
        vectors = torch.cat(pieces)[torch.argsort(order)]  # (B*V, D), in the order given
        return vectors.reshape(*leading, -1)

    def rows_per_group(self, rows: int) -> int:
        """Rows that go through the encoder together where no chunk size is asked for."""
        # A GPU needs large groups to be busy, a CPU small ones for its cache.
        return ROWS_PER_CHUNK if self.device.type == "cpu" else max(ROWS_PER_CHUNK, -(-rows // 4))

    @property
    def packs(self) -> bool:
        """Whether sentences go through the encoder one after the other, unpadded, in training: on CPUs, where the
        encoder's family takes them so and its attention is the default one."""
        usual = self.packing and not self.compiling and attention_name(self.config) == ATTENTION
        both_ways = not getattr(self.config, "is_decoder", False)
        return usual and both_ways and self.device.type == "cpu"

    @property
    def firsts_only(self) -> bool:
        """Whether the last layer is computed for first tokens alone in training, since the pooler reads no others."""
        return POOLERS[self.pooler_name].first_only and self._last_output is not None

    def describe_step(self) -> str:
        """How the encoder goes through a batch in training, for the log."""
        name, how = attention_name(self.config), "padded, in groups of similar length"
        if self.packs:
            name, how = "within each", "packed without padding"
        kernel = "sdpa" if name == ATTENTION else name
        cut = self.firsts_only and not any(each.moves for each in self.augmentations)
        last = "; last layer for first tokens alone" if cut else ""
        return f"sentences {how}, attention {kernel}{last}" + ("; compiled" if self.compiling else "")

    @torch.compiler.disable(recursive=False)
    def embed(self, ids: Tensor, mask: Tensor, drawn: Drawn = NOTHING_DRAWN) -> Tensor:
        """One group of rows (B, L) -> (B, D); drawn: what augmentations do to them."""
        row = POOLERS[self.pooler_name]
        if drawn.order is not None:
            ids = ids.gather(1, drawn.order)
        keep, packed = drawn.keep(), None
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        # Only in training: embeddings stay bit for bit those of the plain encoder, and encode's groups waste little.
        if self.training and self.packs:
            packed = Packed.of(mask)
            positions = packed.positions + self.first_position
            inputs = {"input_ids": packed.pack(ids), "position_ids": positions, "runs": packed.runs}
            keep = None if keep is None else packed.pack(keep.expand(-1, mask.shape[1], -1))
        firsts_only = self.training and self.firsts_only and drawn.order is None
        firsts = slice(0, 1) if packed is None else packed.firsts
        with self._cut(keep), self._only(firsts if firsts_only else None):
            output = self.encoder(**inputs, output_hidden_states=row.all_layers)
        layers = output.hidden_states if row.all_layers else (output.last_hidden_state,)
        if packed is not None:
            if firsts_only and layers[-1].shape[1] != len(packed.firsts):  # compiled behind our back
                raise RuntimeError("hooks do not reach into this encoder; set model.compiling before torch.compile")
            layers = tuple(layer.transpose(0, 1) if firsts_only else packed.unpack(layer) for layer in layers)
        if drawn.order is not None:  # every token back at its own place, [CLS] first
            back = drawn.order.argsort(1).unsqueeze(-1)
            layers = tuple(layer.gather(1, back.expand_as(layer)) for layer in layers)
        vectors = row.pool(layers, mask)
        if self.projection_use == "always" or (self.projection_use == "training" and self.training):
            vectors = torch.tanh(self.projection_linear(vectors))
        return vectors

    @property
    def first_position(self) -> int:
        """Of a sentence's first token among the position embeddings."""
        after_padding = isinstance(self, (RobertaForFocalCL, XLMRobertaForFocalCL, MPNetForFocalCL))
        return self.encoder.embeddings.padding_idx + 1 if after_padding else 0  # MPNet's is always 1

    @property
    def _last_output(self) -> nn.Module | None:
        """Where the last layer's attention is over, in families that have such a module; from there on a token needs
        no other. None where layers are compiled, or run again in backward without `_only`."""
        layers = getattr(getattr(self.encoder, "encoder", None), "layer", None)
        if layers is None or self.compiling or self.recomputing:
            return None
        if getattr(layers[-1], "gradient_checkpointing", False) or is_rerun_in_backward(layers[-1]):
            return None
        return getattr(getattr(layers[-1], "attention", None), "output", None)

    @contextmanager
    def _only(self, tokens: slice | Tensor | None) -> Iterator[None]:
        """Within it, the rest of the last layer is computed for these tokens alone."""
        if tokens is None:
            yield
            return
        handle = self._last_output.register_forward_pre_hook(  # type: ignore[union-attr]
            lambda module, inputs: tuple(hidden[:, tokens] for hidden in inputs)
        )
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def _cut(self, keep: Tensor | None) -> Iterator[None]:
        """Within it, the embedding layer gives zero where keep (B, L or 1, D or 1) is false."""
        if keep is None:
            yield
            return
        # ELECTRA widens its embeddings to D afterwards; its layer 0 is what comes out of that.
        layer = getattr(self.encoder, "embeddings_project", self.encoder.embeddings)
        handle = layer.register_forward_hook(lambda module, inputs, hidden: hidden * keep)
        try:
            yield
        finally:
            handle.remove()

    # ---- text -> vectors

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer saved beside the weights, unless another was set."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.config.name_or_path or "")
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def max_length(self) -> int:
        """Tokens that the encoder can read."""
        positions: int = self.config.max_position_embeddings - self.first_position
        return min(positions, self.tokenizer.model_max_length)

    @torch.no_grad()  # not inference_mode: FSDP2 would keep the weights it gathered here as inference tensors
    def encode(
        self,
        texts: list[str],
        batch_size: int = 64,
        max_length: int | None = None,
        show_progress: bool = False,
        bf16: bool = False,
    ) -> np.ndarray:
        """N sentences -> (N, D) float32 as the config says they are embedded, without dropout, in the order given.

        Sentences are tokenised some thousand at a time and go through the encoder with others of as many tokens.

        max_length: tokens kept of a sentence (default: all that the encoder can read). bf16: matrix products in
        bfloat16, several times faster where the machine has them; cosines move in the third digit.
        """
        if isinstance(texts, str):
            raise UserError(f"encode takes a list of sentences, not one string; give [{texts[:20]!r}]")
        texts = list(texts)
        if not texts:
            return np.zeros((0, self.config.hidden_size), dtype=np.float32)
        was_training = self.training
        self.eval()
        limit = min(max_length or self.max_length(), self.max_length())
        order = np.argsort([-len(text) for text in texts], kind="stable")
        result = np.empty((len(texts), self.config.hidden_size), dtype=np.float32)
        precision = torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext()
        with (
            plain_forward(self),  # scores are of float32, whatever training runs in
            precision,
            tqdm(total=len(texts), desc="encoding", disable=not show_progress, leave=False) as bar,
        ):
            for start in range(0, len(texts), TOKENISED_TOGETHER):
                window = order[start : start + TOKENISED_TOGETHER]
                ids = token_ids(self.tokenizer, [texts[i] for i in window], limit)
                # Sorted by characters alone, batches of STS sentences would be padded to 1.4 times their tokens.
                by_length = np.argsort([-len(row) for row in ids], kind="stable")
                for first in range(0, len(window), batch_size):
                    rows = by_length[first : first + batch_size]
                    batch = (part.to(self.device) for part in pad([ids[i] for i in rows], self.tokenizer.pad_token_id))
                    result[window[rows]] = self(*batch).float().cpu().numpy()
                    bar.update(len(rows))
        self.train(was_training)
        return result

    # ---- saving and loading

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        hub = {key: kwargs[key] for key in ("revision", "cache_dir", "token", "subfolder") if key in kwargs}
        if pretrained_model_name_or_path is not None:
            model.load_head(pretrained_model_name_or_path, **hub)
        model.set_pooling(model.pooler_name, model.projection_use)  # loading made the parameters anew
        if not model.pooling_is_said:
            logger.warning(
                f"nothing in {pretrained_model_name_or_path} says how it pools: {model.pooler_name} is taken, "
                f"projection use {model.projection_use!r}; set_pooling chooses another, load_model takes one"
            )
        return loaded

    def load_head(self, folder: Any, **hub: Any) -> bool:
        """Read the side file of the projection from a folder or a Hub repository; false where there is none."""
        if self.encoder_has_pooler:
            return False
        path = find_file(str(folder), HEAD_FILE, **hub)
        if path is None:
            return False
        self.mlp.load_state_dict({k.removeprefix("mlp."): v for k, v in load_file(path).items()})
        return True

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers; a projection that the plain encoder has no place for goes into a side file."""
        # The names of this model: older transformers write those of TensorFlow (LayerNorm.gamma, .beta) by default,
        # which Trainer, who reads checkpoints non-strictly, would pass over.
        kwargs.setdefault("save_original_format", False)
        head = {}
        if not self.encoder_has_pooler:
            state = kwargs.get("state_dict") or self.state_dict()  # looked at first: super() takes the head out of it
            head = {k: v.detach().cpu().contiguous() for k, v in state.items() if k.startswith("mlp.")}
        super().save_pretrained(save_directory, *args, **kwargs)
        if head and kwargs.get("is_main_process", True):
            save_file(head, Path(save_directory) / HEAD_FILE, metadata={"format": "pt"})


class BertForFocalCL(FocalCLMixin, BertPreTrainedModel):
    encoder_class = BertModel
    encoder_has_pooler = True


class RobertaForFocalCL(FocalCLMixin, RobertaPreTrainedModel):
    encoder_class = RobertaModel
    encoder_has_pooler = True


class XLMRobertaForFocalCL(FocalCLMixin, XLMRobertaPreTrainedModel):
    encoder_class = XLMRobertaModel
    encoder_has_pooler = True


class MPNetForFocalCL(FocalCLMixin, MPNetPreTrainedModel):
    encoder_class = MPNetModel
    encoder_has_pooler = True


class SideHead(FocalCLMixin):
    """The projection is not part of the encoder: keep it out of model.safetensors."""

    encoder_has_pooler = False
    _keys_to_ignore_on_save = ["mlp.dense.weight", "mlp.dense.bias"]
    _keys_to_ignore_on_load_missing = [r"^mlp\."]


class DistilBertForFocalCL(SideHead, DistilBertPreTrainedModel):
    encoder_class = DistilBertModel


class ElectraForFocalCL(SideHead, ElectraPreTrainedModel):
    encoder_class = ElectraModel


class ModernBertForFocalCL(SideHead, ModernBertPreTrainedModel):
    encoder_class = ModernBertModel

    def _init_weights(self, module: nn.Module) -> None:
        if module is self.mlp.dense:  # older ModernBERTs draw their own modules only and leave it uninitialised memory
            draw_generic_weights(self, module)
        else:
            super()._init_weights(module)


_AUTO, _MAPPING = auto_class_parts()


class AutoModelForFocalCL(_AUTO):  # type: ignore[valid-type, misc]
    """Picks the class by the checkpoint's config: ``AutoModelForFocalCL.from_pretrained("bert-base-uncased")``."""

    _model_mapping: Any = _MAPPING


MODELS: dict[Any, type[FocalCLMixin]] = {
    BertConfig: BertForFocalCL,
    RobertaConfig: RobertaForFocalCL,
    XLMRobertaConfig: XLMRobertaForFocalCL,
    MPNetConfig: MPNetForFocalCL,
    DistilBertConfig: DistilBertForFocalCL,
    ElectraConfig: ElectraForFocalCL,
    ModernBertConfig: ModernBertForFocalCL,
}
for _config, _model in MODELS.items():
    AutoModelForFocalCL.register(_config, _model, exist_ok=True)  # without exist_ok it is silently not registered


def load_tokenizer(name_or_path: str, **hub: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint, padding on the right.

    Raises:
        UserError: there is none, or it has no padding token.
    """
    # Without a vocabulary transformers makes an empty tokenizer, which reads every word as unknown.
    if not any(find_file(name_or_path, file, **hub) for file in VOCABULARY_FILES):
        raise UserError(
            f"there is no tokenizer in {name_or_path!r}: none of {', '.join(VOCABULARY_FILES)}; copy it from the "
            "encoder that the checkpoint was trained from"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, **hub)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the tokenizer of {name_or_path!r} is damaged ({_first_line(error)})") from error
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"the tokenizer of {name_or_path!r} has no padding token; set one and save it beside the model"
        )
    tokenizer.padding_side = "right"
    return tokenizer


def load_model(
    name_or_path: str,
    pooler: str | None = None,
    projection: str | None = None,
    dropout: float | None = None,
    revision: str | None = None,
) -> Any:
    """A ``…ForFocalCL`` encoder with its tokenizer, from a folder or a Hub id.

    Weights come from safetensors only and are float32 whatever they were saved as: training starts from them.

    pooler, projection: default to what the checkpoint records (``focal_cl`` in its config, else the files of
    sentence-transformers). dropout: sets every dropout rate of the encoder, under the names its family uses.

    Raises:
        UserError: no such folder or repository, an encoder family without a head, no safetensors, missing weights,
            or nothing says how the encoder pools.
    """
    folder = require_folder(name_or_path)
    if revision is not None and folder.is_dir():
        raise UserError(f"revision {revision!r} is given for the folder {name_or_path!r}; only a Hub id has them")
    if folder.is_dir():
        name_or_path = str(folder)
    hub = {"revision": revision} if revision else {}
    try:
        config = AutoConfig.from_pretrained(name_or_path, **hub)
    except (OSError, ValueError) as error:
        if folder.is_dir():
            raise UserError(f"the config.json of {name_or_path!r} cannot be used ({_first_line(error)})") from error
        raise UserError(
            f"no model {name_or_path!r}: it is no folder here and the Hub did not give it ({_first_line(error)}); "
            "check the name, or give the path of a downloaded folder"
        ) from error
    if type(config) not in MODELS:
        families = ", ".join(sorted(c.model_type for c in MODELS))
        raise UserError(f"model {name_or_path!r} is of type {config.model_type!r}; supported are: {families}")
    if dropout is not None:
        set_dropout(config, dropout)

    record = read_record(config, name_or_path) or read_sentence_transformers_pooling(name_or_path, **hub)
    if pooler is None:
        if record is None:
            raise UserError(
                f"nothing in {name_or_path!r} says how it pools; choose with --pooler: {', '.join(POOLERS)}"
            )
        pooler, projection = record["pooler"], projection or record["projection"]
    config.focal_cl = (getattr(config, "focal_cl", None) or {}) | {"pooler": pooler, "projection": projection}

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # the load report is judged below, not printed
    try:
        model, info = AutoModelForFocalCL.from_pretrained(
            name_or_path, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **hub
        )
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if "ignore_mismatched_sizes" in str(error):
            raise UserError(
                f"the weights of {name_or_path!r} have other shapes than its config.json says; they are of different "
                "models"
            ) from error
        raise UserError(
            f"the weights of {name_or_path!r} could not be loaded ({_first_line(error)}); "
            "a checkpoint needs its weights as safetensors, pickled ones are never opened"
        ) from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    model.tokenizer = load_tokenizer(name_or_path, **hub)
    highest = max(model.tokenizer.get_vocab().values(), default=0)
    if highest >= config.vocab_size:
        raise UserError(
            f"the tokenizer of {name_or_path!r} has ids up to {highest}, its encoder only {config.vocab_size} "
            "embeddings; they are of different models"
        )

    missing = set(info["missing_keys"])
    head_missing = any("pooler." in key for key in missing)
    if not model.encoder_has_pooler:
        head_missing = not model.load_head(name_or_path, **hub)
    missing = {key for key in missing if "pooler." not in key and not key.startswith("mlp.")}
    if missing:
        raise UserError(
            f"checkpoint {name_or_path!r} lacks {len(missing)} weights of {type(model).__name__}, "
            f"for instance {min(missing)!r}; it is damaged or of another architecture"
        )
    further = [key for key in info["unexpected_keys"] if re.search(r"\blayers?\.\d+\.", key)]
    if further:
        raise UserError(
            f"checkpoint {name_or_path!r} holds {len(further)} weights that its config.json has no layer for, such as "
            f"{min(further)!r}; the config was changed or is of another model"
        )
    model.projection_is_random = head_missing
    return model


def require_folder(name_or_path: str) -> Path:
    """A model's name as a path, which is there if it can be no Hub id.

    Raises:
        UserError: it is no folder, or one without a checkpoint.
    """
    folder = Path(name_or_path).expanduser()
    looks_local = folder.is_absolute() or name_or_path.startswith((".", "~")) or name_or_path.count("/") > 1
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(
                f"folder {name_or_path!r} has no config.json, so it is no checkpoint; give the folder in it"
            )
    elif folder.exists() or looks_local:
        raise UserError(f"there is no model folder {name_or_path!r}; give a checkpoint folder or a Hub id (org/name)")
    return folder


def read_record(config: PretrainedConfig, name_or_path: str) -> dict[str, Any] | None:
    """``focal_cl`` of a config, taken out of it where it is none, or None.

    Raises:
        UserError: it does not say pooler and projection as this package writes them.
    """
    record = getattr(config, "focal_cl", None)
    if record is None:
        return None
    if not (isinstance(record, dict) and all(isinstance(record.get(key), str) for key in ("pooler", "projection"))):
        raise UserError(
            f"focal_cl in the config.json of {name_or_path!r} must be a mapping with pooler and projection, not "
            f"{record!r}"
        )
    return record


def require_projection(model: Any, name_or_path: str) -> None:
    """Refuse to embed through a projection that the checkpoint does not carry.

    Raises:
        UserError: the vectors would depend on random weights.
    """
    if model.projection_use == "always" and model.projection_is_random:
        raise UserError(
            f"checkpoint {name_or_path!r} has no projection weights, so --pooler cls would embed through random ones; "
            "use --pooler cls_before_pooler"
        )


def set_dropout(config: PretrainedConfig, rate: float) -> None:
    """Set every dropout rate of an encoder's config.

    Raises:
        UserError: the rate is not in [0, 1).
    """
    if not 0 <= rate < 1:
        raise UserError(f"dropout is {rate}; it must be at least 0 and below 1 (SimCSE uses 0.1)")
    for name in DROPOUT_ATTRIBUTES:
        if hasattr(config, name):
            setattr(config, name, rate)


def read_sentence_transformers_pooling(name_or_path: str, **hub: Any) -> dict[str, str] | None:
    """Pooler and use of the projection from the files of sentence-transformers (both schemas), or None without them.

    Raises:
        UserError: its modules have no counterpart here.
    """

    def read(name: str) -> Any:
        path = find_file(name_or_path, name, **hub)
        try:
            return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{name} of {name_or_path!r} is no JSON ({_first_line(error)})") from error

    modules = read("modules.json")
    if modules is None:
        return None
    if not (isinstance(modules, list) and all(isinstance(m, dict) and {"type", "path"} <= set(m) for m in modules)):
        raise UserError(f"modules.json of {name_or_path!r} must be a list of modules, each with type and path")
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    known = [["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]]
    if kinds not in known:
        raise UserError(
            f"{name_or_path!r} is a sentence-transformers model of modules {' + '.join(kinds)}; "
            "only Transformer + Pooling (+ Normalize) can be read without --pooler"
        )
    pooling = read(f"{modules[1]['path']}/config.json") or {}
    modes = {"cls": "cls_before_pooler", "mean": "mean", "max": "max"}
    legacy = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}
    chosen = (
        [pooling["pooling_mode"]]
        if "pooling_mode" in pooling
        else [mode for mode, key in legacy.items() if pooling.get(key)]
    )
    if len(chosen) != 1 or chosen[0] not in modes:
        raise UserError(f"{name_or_path!r} pools as {chosen or 'unknown'}; choose with --pooler: {', '.join(POOLERS)}")
    return {"pooler": modes[chosen[0]], "projection": "none"}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
