"""``python -m hf_focalcse COMMAND …`` is ``focalcse COMMAND …``."""

from .cli.main import main

main()
