"""Words of bash and what they stand for: lexer, expansions, variables, files. Knows nothing of commands."""
