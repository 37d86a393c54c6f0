"""verl's config of its arguments, composed without loading verl."""
