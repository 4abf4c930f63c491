"""The compatibility door: device plugins that speak HAMi's annotations, turned into events, and answered.

Everything that differs between vendors comes from their pages; what is decided here without I/O stands in `decide/door.py`.
"""
