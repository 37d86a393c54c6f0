"""Names that other projects use for settings of ours. Only `values` is loaded before an error is to be shown."""
