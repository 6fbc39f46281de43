"""``python -m hf_focalcse COMMAND …`` is ``focalcse COMMAND …``."""

from .cli import main

main()
