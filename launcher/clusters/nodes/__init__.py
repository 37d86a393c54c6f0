"""The nodes of a Ray cluster that is ours: on each a keeper, which runs Ray there and starts it again when it dies."""
