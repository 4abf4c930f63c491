"""What a vendor is: data plus named constraints. Pure.

A vendor is a page. A rule that two vendors need moves to `constraints.py` and gets a name.
"""
