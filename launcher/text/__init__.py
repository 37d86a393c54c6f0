"""Text to tokens: a model's tokenizer and chat template, rows as token ids, and token counts of many rows.

`tokenizer.load_tokenizer` loads one; `encoder.Encoder` turns a row into `Tokens` (ids and the
mask of what is imitated) or refuses it; `measure.count_tokens` counts the tokens of a row.
`process.TextProcess` does so in a process of its own, within bounds, and says what is wrong with tokenizer or template.
Nothing here imports torch; only `load_tokenizer` may load it, through transformers' AutoTokenizer.
"""
