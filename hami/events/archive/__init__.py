"""The log on disk: sealed segments that outlive what is trimmed, read as one sequence with the log, and checked offline."""
