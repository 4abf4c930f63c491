"""decide for the node: fault -> transition, allocation -> container edits. Pure."""
