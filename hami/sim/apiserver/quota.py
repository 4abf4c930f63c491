"""ResourceQuota as far as the API server enforces it for extended resources: `requests.*` is counted, `limits.*` is not."""

from decimal import Decimal

from hami.sim.apiserver.core import Core
from hami.sim.apiserver.errors import Obj
from hami.sim.apiserver.kinds import PODS
from hami.sim.apiserver.quantity import canonical, parse

_PREFIX = "requests."
Amounts = dict[str, Decimal]


def _of_containers(containers: list[Obj], *, highest: bool) -> Amounts:
    total: Amounts = {}
    for each in containers:
        for name, written in ((each.get("resources") or {}).get("requests") or {}).items():
            amount, so_far = parse(written)[0], total.get(name, Decimal(0))
            total[name] = max(so_far, amount) if highest else so_far + amount
    return total


def requested(pod: Obj) -> Amounts:
    """What a pod counts for: the sum of its containers and sidecars, or the largest init container if that is more."""
    spec = pod["spec"]
    inits = spec.get("initContainers") or []
    sidecars = [each for each in inits if each.get("restartPolicy") == "Always"]
    steady = _of_containers((spec.get("containers") or []) + sidecars, highest=False)
    peak = _of_containers([each for each in inits if each not in sidecars], highest=True)
    return {name: max(steady.get(name, Decimal(0)), peak.get(name, Decimal(0))) for name in steady | peak}


def exceeded(core: Core, pod: Obj) -> str | None:
    """The words of the refusal if a new pod would exceed a quota of its namespace."""
    namespace, wanted = pod["metadata"].get("namespace") or "", requested(pod)
    quotas = core.store.shelf("/resourcequotas").items
    for (where, name), quota in sorted(quotas.items()):
        hard = quota.obj["spec"].get("hard") or {}
        counted = {
            key: limit for key, limit in hard.items() if wanted.get(key.removeprefix(_PREFIX)) and key.startswith(_PREFIX)
        }
        if where != namespace or not counted:
            continue
        used = _used(core, namespace)
        over = [key for key, limit in sorted(counted.items()) if _total(key, used, wanted) > parse(limit)[0]]
        if over:
            return _told(name, over, wanted, used, hard)
    return None


def _total(key: str, used: Amounts, wanted: Amounts) -> Decimal:
    resource = key.removeprefix(_PREFIX)
    return used.get(resource, Decimal(0)) + wanted[resource]


def _used(core: Core, namespace: str) -> Amounts:
    total: Amounts = {}
    for (where, _), stored in core.store.shelf(PODS.store_key).items.items():
        if where == namespace and (stored.obj.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
            for name, amount in requested(stored.obj).items():
                total[name] = total.get(name, Decimal(0)) + amount
    return total


def _told(name: str, over: list[str], wanted: Amounts, used: Amounts, hard: Obj) -> str:
    def listed(values: Amounts) -> str:
        return ",".join(f"{key}={canonical(str(values.get(key.removeprefix(_PREFIX), 0)))}" for key in over)

    limits = ",".join(f"{key}={hard[key]}" for key in over)
    return f"exceeded quota: {name}, requested: {listed(wanted)}, used: {listed(used)}, limited: {limits}"
