"""Owns the devices of one node: discovery, kubelet, health, delivery."""
