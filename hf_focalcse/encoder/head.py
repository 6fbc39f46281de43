"""What turns an encoder of transformers into one that embeds sentences: pooling, projection, ``forward``.

One mixin over all families. Where an encoder has a pooler of Linear and tanh on [CLS], that is the training
projection, so that a checkpoint is a plain encoder for everyone else; elsewhere the projection lies in a side file.

Shape letters: B sentences, V views, L tokens, D dimensions.
"""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from ..compat import (
    attention_name,
    draw_generic_weights,
    is_rerun_in_backward,
    keep_out_of_files,
    set_attention,
)
from ..errors import UserError
from .augment import Augmentation, Drawn, Dropout, draw_views
from .batches import padded_right
from .chunks import checkpointed
from .denoising import Denoising
from .dropout import use_fast_dropout
from .encode import CardData, EncodingMixin
from .families import Family
from .hooks import only_tokens, zeroed
from .packing import ATTENTION, Packed
from .poolers import JOINED, pooler_of, resolve_pooler
from .projection import Projection
from .recorded import Pooling
from .saving import SavingMixin
from .tail import build_tail

PROJECTION_USES = ("training", "always", "none")
NOTHING_DRAWN = Drawn()
ROWS_PER_CHUNK = 64  # rows of similar length that go through the encoder together where no chunk size is given


class FocalCLMixin(SavingMixin, EncodingMixin):
    """What every ``…ForFocalCL`` class shares. How it pools is recorded in ``config.focal_cl``:

    pooler: a row of `POOLERS`. projection: when the pooled vector passes the projection: "training" (it is trained
    with the projection and embedded without: SimCSE's mlp_only_train), "always" or "none".
    """

    accepts_loss_kwargs = False  # else Trainer leaves the division by accumulation steps to the model
    family: Family
    encoder_class: type[nn.Module]

    def __init__(self, config: PretrainedConfig):
        super().__init__(config)
        options = {"add_pooling_layer": True} if self.encoder_has_pooler else {}
        setattr(self, self.base_model_prefix, self.encoder_class(config, **options))
        if not self.encoder_has_pooler:
            self.mlp = Projection(config.hidden_size)
        use_fast_dropout(self)
        if self.family.packable and attention_name(config) == "sdpa":
            set_attention(config, ATTENTION)  # sdpa, except for packed sentences
        record = getattr(config, "focal_cl", None) or {}
        self.pooling_is_said = bool(record)
        self.side_parts: set[str] = set()  # those that a side file held
        self.published: Pooling | None = None  # as the checkpoint records, whatever is chosen here
        self.projection_is_random = False  # whether its weights are those that it was drawn with
        self.chunk_size: int | None = None
        self.packing = True  # whether sentences are packed where that is possible, see `packs`
        self.recomputing = False  # whether backward is going to run layers again
        self.compiling = False  # whether torch.compile has the encoder, whose shapes and modules then stay as they are
        self.denoising: Denoising | None = None  # what is taken out of views in templates, see `embed_views`
        self.augmentations: tuple[Augmentation, ...] = ()  # one a view; none: the encoder's dropout alone
        self.objective: nn.Module | None = None  # see `carry`
        self.model_card_data = CardData()
        size = config.hidden_size * len(str(record.get("pooler", "")).split(JOINED))
        self.tail = build_tail(size, record.get("modules", []))  # what follows pooling
        self.carry(None)
        self.take_record(record)
        self.post_init()
        self.set_pooling(record.get("pooler", self.family.pooler), record.get("projection"))

    @property
    def encoder(self) -> Any:
        """The plain encoder of transformers."""
        return getattr(self, self.base_model_prefix)

    @property
    def encoder_has_pooler(self) -> bool:
        """Whether the projection is the encoder's own pooler."""
        return self.family.projection is not None

    # ---- pooling and projection

    def set_pooling(self, pooler: str, projection: str | None = None) -> None:
        """Choose the pooler and the use of the projection (default: "training" for ``cls``, "none" for the others).

        Written into ``config.focal_cl``. The parameters of a projection that is not used get no gradient.

        Raises:
            UserError: an unknown pooler or use, or a projection with a pooler that has none.
        """
        self.pooler_name = resolve_pooler(pooler)
        has_projection = pooler_of(self.pooler_name).projection
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
        """The Linear of the projection: in the encoder's own pooler or in the side head."""
        linear: nn.Linear = self.mlp.dense if self.family.projection is None else self._at(self.family.projection)
        return linear

    def reset_projection(self, generator: torch.Generator | None = None) -> None:
        """Draw the projection anew, as SimCSE does: a pretrained pooler was trained for another task."""
        linear = self.projection_linear
        nn.init.normal_(linear.weight, std=getattr(self.config, "initializer_range", 0.02), generator=generator)
        nn.init.zeros_(linear.bias)
        self.projection_is_random = True

    def dropout_rates(self) -> dict[str, float]:
        """The dropout rates of the encoder by their names in its config."""
        return {name: getattr(self.config, name) for name in self.family.dropout}

    @property
    def augmented(self) -> bool:
        """Whether an augmentation makes the views differ, beyond dropout."""
        return any(not isinstance(augmentation, Dropout) for augmentation in self.augmentations)

    @property
    def cut(self) -> bool:
        """Whether an augmentation sets parts of the embedding layer's output to zero."""
        return any(augmentation.cuts for augmentation in self.augmentations)

    # ---- forward

    @torch.compiler.disable(recursive=False)  # only the encoder itself is worth compiling
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        batch: Any = None,
        token_type_ids: Tensor | None = None,
        text_tokens: Tensor | None = None,
    ) -> Any:
        """`embed_views` of what a tokenizer gives; or the loss of a whole ``batch`` by the objective that `carry` was
        given.

        The objective runs in here, so that engines have gathered its parameters and count them in backward.
        """
        if batch is not None:
            return self.objective(self.embed_views, batch)  # type: ignore[misc]
        return self.embed_views(input_ids, attention_mask, token_type_ids, text_tokens)

    def carry(self, objective: nn.Module | None) -> None:
        """Train the parameters of an objective with the encoder's, without publishing them; None: of no objective.

        They lie under ``objective`` while a run trains, and in no file that `save_pretrained` writes.
        """
        self.objective = objective
        parts = [("objective", objective), ("tail", self.tail)]
        keep_out_of_files(self, [f"{name}.{key}" for name, part in parts if part for key in part.state_dict()])

    @torch.compiler.disable(recursive=False)
    def embed_views(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None = None,
        text_tokens: Tensor | None = None,
    ) -> Tensor:
        """Ids and mask (B, V, L) -> embeddings (B, V, D); or (B, L) -> (B, D), padded on either side.

        token_type_ids: as the ids; an encoder that has no token types passes over them, as it does in transformers.
        text_tokens: (B, V), of views that are denoised: what ``denoising`` says of them is subtracted before the
        projection. It is computed once, outside of any chunk.

        Rows are grouped by length; every group is trimmed to its own longest row, or packed without padding. With
        ``chunk_size`` a group has that many rows and is checkpointed in training: only one group's activations are
        held at a time, and dropout is replayed. In training ``augmentations`` change the views.
        """
        if input_ids is None or attention_mask is None:
            raise UserError("an encoder needs input_ids and attention_mask")
        *leading, length = input_ids.shape
        flat = input_ids.reshape(-1, length), attention_mask.reshape(-1, length)
        ids, mask, types = padded_right(*flat, self.usable_types(token_type_ids))  # (B*V, L)
        drawn = NOTHING_DRAWN
        if self.training and self.augmentations:
            drawn = draw_views(self.augmentations, mask.reshape(*leading, length), self.config.hidden_size)
        if pooler_of(self.pooler_name).marked:
            self.require_marked(ids)
        empty = None
        if text_tokens is not None and self.denoising is not None:
            empty = self.denoising.states(self, text_tokens).flatten(0, 1)  # (B*V, D)
        lengths = mask.sum(1)
        order = torch.argsort(lengths, descending=True, stable=True)
        pieces = []
        for rows in order.split(self.chunk_size or self.rows_per_group(len(ids))):
            longest = max(int(lengths[rows[0]]), 1)
            chunk = (
                *(ids[rows, :longest], mask[rows, :longest], drawn.of(rows, longest)),
                None if types is None else types[rows, :longest],
                None if empty is None else empty[rows],
            )
            if self.chunk_size and torch.is_grad_enabled():
                pieces.append(checkpointed(self.embed, *chunk))
            else:
                pieces.append(self.embed(*chunk))
        vectors = torch.cat(pieces)[torch.argsort(order)]  # (B*V, D), in the order given
        return vectors.reshape(*leading, -1)

    def usable_types(self, types: Tensor | None) -> Tensor | None:
        """Token types that the encoder reads, None where it has none.

        Raises:
            UserError: a type is beyond those that the encoder has embeddings for.
        """
        known = getattr(self.config, "type_vocab_size", 0) if self._reads_types else 0
        if types is None or not known:
            return None
        if types.numel() and int(types.max()) >= known:
            raise UserError(
                f"token_type_ids go up to {int(types.max())}, but this encoder has {known} token types, counted "
                "from 0; tokenize one text at a time, or leave token_type_ids out"
            )
        return types

    def rows_per_group(self, rows: int) -> int:
        """Rows that go through the encoder together where no chunk size is given."""
        # A GPU needs large groups to be busy, a CPU small ones for its cache.
        return ROWS_PER_CHUNK if self.device.type == "cpu" else max(ROWS_PER_CHUNK, -(-rows // 4))

    @property
    def packs(self) -> bool:
        """Whether training packs sentences one after the other without padding: on CPUs, where the family allows it
        and its attention is the default one."""
        usual = self.packing and not self.compiling and attention_name(self.config) == ATTENTION
        both_ways = not getattr(self.config, "is_decoder", False)
        return usual and both_ways and self.device.type == "cpu"

    @property
    def firsts_only(self) -> bool:
        """Whether training computes the last layer for first tokens alone, because the pooler reads no others."""
        return pooler_of(self.pooler_name).first_only and not self.unpooled and self._last_output is not None

    def describe_step(self) -> str:
        """How a batch goes through the encoder in training, for the log."""
        name, how = attention_name(self.config), "padded, in groups of similar length"
        if self.packs:
            name, how = "within each", "packed without padding"
        kernel = "sdpa" if name == ATTENTION else name
        cut = self.firsts_only and not any(each.moves for each in self.augmentations)
        last = "; last layer for first tokens alone" if cut else ""
        return f"sentences {how}, attention {kernel}{last}" + ("; compiled" if self.compiling else "")

    @torch.compiler.disable(recursive=False)
    def embed(
        self,
        ids: Tensor,
        mask: Tensor,
        drawn: Drawn = NOTHING_DRAWN,
        types: Tensor | None = None,
        empty: Tensor | None = None,
    ) -> Tensor:
        """One group of rows, ids and mask (B, L) -> vectors (B, D); drawn: what augmentations do to the rows; types:
        token types (B, L); empty: (B, D), subtracted from what is pooled."""
        row = pooler_of(self.pooler_name)
        read = ids if drawn.order is None else ids.gather(1, drawn.order)
        types = types if types is None or drawn.order is None else types.gather(1, drawn.order)
        keep, packed = drawn.keep(), None
        inputs: dict[str, Any] = {"input_ids": read, "attention_mask": mask}
        # Only in training: embeddings stay bit for bit those of the plain encoder, and encode's groups waste little.
        if self.training and self.packs:
            packed = Packed.of(mask)
            positions = packed.positions + self.first_position
            inputs = {"input_ids": packed.pack(read), "position_ids": positions, "runs": packed.runs}
            keep = None if keep is None else packed.pack(keep.expand(-1, mask.shape[1], -1))
            types = None if types is None else packed.pack(types)
        if types is not None:
            inputs["token_type_ids"] = types
        firsts_only = self.training and self.firsts_only and drawn.order is None
        firsts = slice(0, 1) if packed is None else packed.firsts
        with zeroed(self._embeddings, keep), only_tokens(self._last_output, firsts if firsts_only else None):
            output = self.encoder(**inputs, **self.family.arguments, output_hidden_states=row.all_layers)
        layers = output.hidden_states if row.all_layers else (output.last_hidden_state,)
        if packed is not None:
            if firsts_only and layers[-1].shape[1] != len(packed.firsts):
                raise RuntimeError("hooks do not reach into this encoder; set model.compiling before torch.compile")
            layers = tuple(layer.transpose(0, 1) if firsts_only else packed.unpack(layer) for layer in layers)
        if drawn.order is not None:  # every token back at its own place, [CLS] first
            back = drawn.order.argsort(1).unsqueeze(-1)
            layers = tuple(layer.gather(1, back.expand_as(layer)) for layer in layers)
        pooled = self.pool(layers, mask, ids)
        return self.after_pooling(pooled if empty is None else pooled - empty)

    def pool(self, layers: tuple[Tensor, ...], mask: Tensor, ids: Tensor) -> Tensor:
        """Hidden states (B, L, D), mask and ids (B, L) -> vectors (B, D), before any projection."""
        return pooler_of(self.pooler_name).pool(layers, self.pooled_from(mask, ids), ids)

    def require_marked(self, ids: Tensor) -> None:
        """
        Raises:
            UserError: a row of ids (B, L) has no mask token to pool.
        """
        if not bool((ids == self.tokenizer.mask_token_id).any(1).all()):
            raise UserError(
                f"pooler {self.pooler_name!r} takes the vector of the mask token, and a text has none; embed with "
                "encode, or put texts into the encoder's template before they are tokenised"
            )

    def pooled_from(self, mask: Tensor, ids: Tensor) -> Tensor:
        """Mask and ids (B, L) -> the mask without the tokens of a prompt that is not pooled; or of the last mask token
        alone, where that is pooled."""
        if pooler_of(self.pooler_name).marked:
            found = (ids == self.tokenizer.mask_token_id).int()
            return found * (found.flip(1).cumsum(1).flip(1) == 1)
        return (
            mask.index_fill(1, torch.arange(min(n, mask.shape[1])).to(mask.device), 0)
            if (n := self.unpooled)
            else mask
        )

    def after_pooling(self, vectors: Tensor) -> Tensor:
        """Pooled vectors (B, D) through the projection, where it is used, and what follows pooling: (B, D')."""
        if self.projection_use == "always" or (self.projection_use == "training" and self.training):
            vectors = torch.tanh(self.projection_linear(vectors))
        found: Tensor = self.tail(vectors)
        return found

    # ---- parts of the encoder, see `Family`

    def _at(self, path: str) -> Any:
        return attrgetter(path)(self.encoder)

    @property
    def _reads_types(self) -> bool:
        return "token_type_ids" in inspect.signature(self.encoder_class.forward).parameters

    @property
    def first_position(self) -> int:
        """The position id of a sentence's first token."""
        return self.encoder.embeddings.padding_idx + 1 if self.family.after_padding else 0  # MPNet's index is always 1

    @property
    def _last_output(self) -> nn.Module | None:
        """The module that takes the output of the last layer's attention, in families that have one.

        None where `only_tokens` would not reach it: in compiled layers, or when backward runs layers again.
        """
        path = self.family.after_attention
        if path is None or self.compiling or self.recomputing:
            return None
        last = self._at(self.family.layers)[-1]
        if getattr(last, "gradient_checkpointing", False) or is_rerun_in_backward(last):
            return None
        module: nn.Module = attrgetter(path)(last)
        return module

    @property
    def _embeddings(self) -> list[nn.Module]:
        """The modules whose outputs make, in sum, what the first layer reads."""
        paths = (path for path in self.family.embeddings if hasattr(self.encoder, path.partition(".")[0]))
        added = [] if self.family.positions is None else [self.family.positions]
        return [self._at(path) for path in (next(paths), *added)]


class SideHead(FocalCLMixin):
    """The head of families without a pooler of their own: its projection is kept out of model.safetensors."""

    _keys_to_ignore_on_save = ["mlp.dense.weight", "mlp.dense.bias"]
    _keys_to_ignore_on_load_missing = [r"^(mlp|tail)\."]

    def _init_weights(self, module: nn.Module) -> None:
        if module is self.mlp.dense:  # some families draw their own modules only and would leave it uninitialised
            draw_generic_weights(self, module)
        else:
            super()._init_weights(module)
