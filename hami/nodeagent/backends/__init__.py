"""Ways to reach devices: NVML (the only importer of pynvml) and a simulated one."""
