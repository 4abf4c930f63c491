"""The demo: the whole system on one machine, telling a story whose every claim is checked as it is told."""
