"""Pure: progress and notes in, what may be trimmed out."""
