"""Limits of rendering and counting, shared by `process` and the code that runs in its subprocess."""

RENDER_S = 2.0
"""CPU seconds that a chat template may take; each turn that it renders adds `TURN_S`, each character `SIGN_S`."""
TURN_S = 0.005
SIGN_S = 1e-6
RENDER_BYTES = 2**30
"""Most bytes of memory that a template may take for one row."""
TOKENIZER = "tokenizer.json"
"""The file of a fast tokenizer, with all but the roles of its special tokens and its chat template."""
FAIL_SHARE, WARN_SHARE = 0.5, 0.01
"""Shares of a text without a token (mapped to <unk> or dropped) from which on plan fails, and warns."""
Count = tuple[int, int, int] | str
"""Tokens of a row's prompt and of its answer, and the sequences it becomes; or why the row cannot be written."""
EQUAL = "chosen and rejected have equal tokens, once written and cut, which teaches nothing; use two different answers"
"""The reason for refusing a pair whose answers have equal tokens."""
