"""Every event that hami ever wrote, one module per subject. Pure.

Names are past tense, written by hand, for ever. New fields have defaults; a changed meaning is a new type and an upcaster.
"""
