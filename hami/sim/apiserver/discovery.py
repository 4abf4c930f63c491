"""The documents with which a client finds out what the server serves."""

from hami.sim.apiserver.errors import Obj
from hami.sim.apiserver.kinds import RESOURCES, Resource

_VERSION: Obj = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2-hami-sim",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
_SUB_KINDS = {"binding": "Binding", "eviction": "Eviction"}


def _entry(resource: Resource) -> list[Obj]:
    own: Obj = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short:
        own["shortNames"] = list(resource.short)
    subs = [
        {
            "name": f"{resource.plural}/{sub}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": _SUB_KINDS.get(sub, resource.kind),
            "verbs": ["create"] if sub in _SUB_KINDS else ["get", "patch", "update"],
        }
        for sub in resource.subresources
    ]
    return [own, *subs]


def _groups() -> list[Obj]:
    found: dict[str, Obj] = {}
    for each in RESOURCES:
        if each.group:
            version = {"groupVersion": each.api_version, "version": each.version}
            found[each.group] = {"name": each.group, "versions": [version], "preferredVersion": version}
    return list(found.values())


def document(path: str) -> Obj | str | None:
    """The document at a path (a string is plain text), or None."""
    parts = tuple(each for each in path.split("/") if each)
    match parts:
        case ("version",):
            return _VERSION
        case ("healthz" | "livez" | "readyz", *_):
            return "ok"
        case ("api",):
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ("apis",):
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups()}
        case ("apis", group):
            return next(({"kind": "APIGroup", "apiVersion": "v1", **each} for each in _groups() if each["name"] == group), None)
        case ("api", version):
            return _resource_list("", version)
        case ("apis", group, version):
            return _resource_list(group, version)
    return None


def _resource_list(group: str, version: str) -> Obj | None:
    listed = [entry for each in RESOURCES if (each.group, each.version) == (group, version) for entry in _entry(each)]
    if not listed:
        return None
    named = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": named, "resources": listed}
