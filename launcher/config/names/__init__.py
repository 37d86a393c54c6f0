"""Names that other projects use for settings of ours. Nothing here is loaded before an error is to be shown."""
