"""apply(state, event) -> state. Pure.

The outer mappings are owned by the caller and changed in place; the values inside are frozen.
"""
