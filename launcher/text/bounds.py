"""Limits of rendering and counting, shared by the process that asks about texts and the one that answers."""

RENDER_S = 2.0
"""CPU seconds that a chat template may take at all; each turn that it writes adds `TURN_S`, each character `SIGN_S`."""
TURN_S = 0.005
SIGN_S = 1e-6
RENDER_BYTES = 2**30
"""Memory that a template may take for one row."""
TOKENIZER = "tokenizer.json"
"""The file that holds all of a tokenizer but its special tokens and its chat template."""
MOSTLY, SOME = 0.5, 0.01
"""Share of a text without tokens of its own from which on too little is left to learn from."""
Count = tuple[int, int, int] | str
"""Tokens of a row's prompt and of its answer, and the sequences it becomes; or why the row cannot be written."""
EQUAL = "chosen and rejected have equal tokens, once written and cut, which teaches nothing; use two different answers"
"""Why a pair is refused whose answers the model sees as one."""
