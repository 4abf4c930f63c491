"""The webhook registrations that hami needs, as API objects (what a chart would install)."""

import base64
from typing import Any

from hami.vendors import identity

IGNORE_LABEL = identity.IGNORE_LABEL
_NOT_IGNORED = {"matchExpressions": [{"key": IGNORE_LABEL, "operator": "NotIn", "values": [identity.IGNORE_VALUE]}]}


def mutating(url: str, authority_pem: str) -> dict[str, Any]:
    """Prepares pods at creation, and debug containers that join them.

    `Ignore`: a cluster without hami can still create pods; an unprepared one sees no device.
    """
    return {
        "metadata": {"name": "hami-mutate"},
        "webhooks": [
            {
                "name": "mutate.hami.io",
                "clientConfig": _client(f"{url}/mutate", authority_pem),
                "rules": [_rule(["CREATE"], ["pods"]), _rule(["UPDATE"], ["pods/ephemeralcontainers"])],
                "namespaceSelector": _NOT_IGNORED,
                "objectSelector": _NOT_IGNORED,
                "failurePolicy": "Ignore",
                "matchPolicy": "Equivalent",
                "reinvocationPolicy": "Never",
                "sideEffects": "None",
                "timeoutSeconds": 10,
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


def validating(url: str, authority_pem: str) -> dict[str, Any]:
    """Guards what was prepared.

    `Fail` for pods of ours: nobody edits a reserved key while hami cannot look. `Ignore` for Bindings, which carry no labels
    and whose rule therefore sees every pod of the cluster, and for status writes, which a kubelet must be able to make: what
    slips through while hami is away shows no device (docs/adr/0020). The namespace that hami runs in carries the ignore label.
    """
    common = {
        "clientConfig": _client(f"{url}/validate", authority_pem),
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"],
    }
    yielding = {"failurePolicy": "Ignore", "timeoutSeconds": 5}
    ours = {"matchLabels": {identity.LABEL: identity.LABEL_VALUE}}
    return {
        "metadata": {"name": "hami-validate"},
        "webhooks": [
            {
                "name": "pods.validate.hami.io",
                "rules": [_rule(["CREATE", "UPDATE"], ["pods", "pods/ephemeralcontainers"])],
                "objectSelector": ours,
                **common,
            },
            {
                "name": "status.validate.hami.io",
                "rules": [_rule(["UPDATE"], ["pods/status"])],
                "objectSelector": ours,
                **common,
                **yielding,
            },
            {
                "name": "bindings.validate.hami.io",
                "rules": [_rule(["CREATE"], ["pods/binding", "bindings"])],
                "namespaceSelector": _NOT_IGNORED,
                **common,
                **yielding,
            },
        ],
    }


def _client(url: str, authority_pem: str) -> dict[str, str]:
    return {"url": url, "caBundle": base64.b64encode(authority_pem.encode()).decode()}


def _rule(operations: list[str], resources: list[str]) -> dict[str, Any]:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": operations,
        "resources": resources,
        "scope": "Namespaced",
    }
