"""State rebuilt from the log: folds (pure), and the shell that keeps them live, saves and time-travels them."""
