"""The only code that imports kubernetes: client, watch, errors."""
