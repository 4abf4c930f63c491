"""Where the API server is and how we prove who we are. This module and transport.py are the only ones to import kubernetes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """A kubeconfig file; an empty path means the usual places ($KUBECONFIG, then ~/.kube/config)."""

    path: str = ""
    context: str = ""


@dataclass(frozen=True, slots=True)
class InCluster:
    """The service account mounted into this pod. Its token is read again as it is renewed."""


@dataclass(frozen=True, slots=True)
class Server:
    """An explicit address, as tests and the simulator give it."""

    url: str
    authority_pem: str = ""
    token: str = ""


Access = Kubeconfig | InCluster | Server


async def configuration(access: Access, *, connections: int) -> "Configuration":
    from kubernetes.aio import client, config  # noqa: PLC0415 - importing kubernetes takes a second: only who connects pays

    made = client.Configuration()
    match access:
        case Kubeconfig(path, context):
            load: Any = config.load_kube_config
            await load(path or None, context or None, client_configuration=made, persist_config=False)
        case InCluster():
            load = config.load_incluster_config
            load(client_configuration=made)
        case Server(url, pem, token):
            made.host = url
            made.ca_cert_data = pem or None
            if token:
                made.api_key["BearerToken"] = f"Bearer {token}"
    made.connection_pool_maxsize = connections
    return made
