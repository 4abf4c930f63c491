"""A Kubernetes to test against: API server, kubelets, scheduler loop, workloads, faults, and the demo."""
