"""A trainer that publishes the export of its run to the Hub, once, and never its training folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..compat import save_unpublished
from ..errors import UserError
from . import finish
from .keeping import KeepingTrainer, logger


class PushingTrainer(KeepingTrainer):
    """What `FocalCSETrainer` does about the Hub and the model card."""

    _hub_token: str | None

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make no repository before there is a trained model to put into it."""
        self.push_in_progress = None

    def create_model_card(  # type: ignore[override]
        self, language: str | None = None, license: str | None = None, **drafted: Any
    ) -> None:
        """README.md of ``output_dir`` from its run.json and results.json, since Trainer's draft has no STS scores.

        Needs the weights in ``output_dir``. drafted: what Trainer's draft would say, all of which the record knows.
        """
        if not self.is_world_process_zero():
            return
        for name in (name for name, value in drafted.items() if value is not None):
            logger.warning("create_model_card: %s is left out, the card is made from the record of the run", name)
        finish.renew_card(self, language, license)

    def push_to_hub(  # type: ignore[override]
        self,
        commit_message: str | None = None,
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **card: Any,
    ) -> str | None:
        """Save, write the card, export ``output_dir`` to ``output_dir/hub`` and push the export; its address.

        Without ``hub_model_id`` the repository is named after ``output_dir`` and belongs to the token's owner.

        Raises:
            UserError: ``blocking=False``, or what `export_model` and `push` raise.
        """
        if not blocking:
            raise UserError("push_to_hub(blocking=False) is not offered: the export is checked first; leave it out")
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        save_unpublished(self)
        if not self.is_world_process_zero():
            return None
        (Path(str(self.args.output_dir)) / "training_args.bin").unlink(missing_ok=True)
        self.create_model_card(**card)
        return finish.publish(self, commit_message, token or self._hub_token, revision, private)
