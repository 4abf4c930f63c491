"""The `hami` command, one module per verb. Verbs import late."""
