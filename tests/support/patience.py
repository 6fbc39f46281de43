"""How long a test waits for what must happen: only a hang takes so long, whatever else the machine has to do."""

PATIENCE = 600  # seconds
