"""Decides where pods go: extender, webhook, inventory, ingest, reaper. Decisions themselves live in `decide/`."""
