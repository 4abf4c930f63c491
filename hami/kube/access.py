"""Where the API server is and how we prove who we are. This module and transport.py are the only ones to import kubernetes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from hami.domain.errors import InvalidInput

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
    """Raises InvalidInput when the place named holds nothing usable."""
    from kubernetes.aio import client, config  # noqa: PLC0415 - importing kubernetes takes a second: only who connects pays

    made = client.Configuration()
    match access:
        case Kubeconfig(path, context):
            load: Any = config.load_kube_config
            with _refusing("kubeconfig", path):
                await load(path or None, context or None, client_configuration=made, persist_config=False)
        case InCluster():
            load = config.load_incluster_config
            with _refusing("kubeconfig", ""):
                load(client_configuration=made)
        case Server(url, pem, token):
            made.host = url
            made.ca_cert_data = pem or None
            if token:
                made.api_key["BearerToken"] = f"Bearer {token}"
    made.connection_pool_maxsize = connections
    # Left to itself the client looks for a proxy and reads ~/.netrc in a thread before every single request.
    made.client_session_kwargs = {"trust_env": False}
    made.proxy = made.proxy or _proxy_for(made.host)
    return made


@contextmanager
def _refusing(field: str, path: str) -> Iterator[None]:
    """The client's loaders fail in many ways: their own errors, YAML's, the file system's, those of a file of another shape."""
    if path and not Path(path).exists():
        raise InvalidInput(field, path, "no such file")
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise InvalidInput(
            field, path, said if path else f"none is named, and this is not a pod of a cluster: {said}"
        ) from error


def _proxy_for(url: str) -> str | None:
    """The machine's proxy for this address, as every other program on it would use it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return None if not host or proxy_bypass(host) else getproxies().get(parts.scheme)
