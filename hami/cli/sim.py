"""`hami sim apiserver|kubelet|scheduler`: the parts of the simulated Kubernetes as processes of their own."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import click

from hami.cli.process import run_process
from hami.cli.session import Session, Verb, pass_session
from hami.domain.errors import InvalidInput


@click.group()
def command() -> None:
    """Run parts of a simulated Kubernetes: an API server, kubelets, a scheduler that calls the extender."""


@command.command("apiserver", cls=Verb)
@click.option("--bind", default="127.0.0.1:6443", show_default=True, metavar="HOST:PORT", help="Where to listen; port 0 = any.")
@click.option("--advertise", default="", metavar="URL", help="The address that the kubeconfig names; empty = the one bound.")
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a kubeconfig here.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="A node that exists from the start (repeatable).")
@click.option("--webhook", default="", metavar="URL", help="Register hami's webhooks at this https address.")
@click.option(
    "--certificates",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write tls.pem (for the webhook's server) and ca.pem here; needed with --webhook.",
)
@pass_session
def apiserver(
    session: Session,
    bind: str,
    advertise: str,
    kubeconfig: Path | None,
    nodes: tuple[str, ...],
    webhook: str,
    certificates: Path | None,
) -> None:
    """A Kubernetes API server in memory: what hami touches, as the real one does it on the wire. Everyone is admin.

    The kubeconfig is written last: once it is there, everything else is.
    """
    host, port = _address(bind)
    hooks = _webhooks(webhook, certificates) if webhook else {}
    run_process(session, _serve_api, host, port, advertise, kubeconfig, {"nodes": [_node(name) for name in nodes], **hooks})


def _webhooks(url: str, folder: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Registrations at `url`, under the authority in `folder`; made there when there is none for this host."""
    from hami.sim import webhooks

    host = urlsplit(url).hostname
    if folder is None or not host or not url.startswith("https://"):
        raise InvalidInput("--webhook", url, "give an https URL, and --certificates with the folder for its certificate")
    pem = _authority(folder, host)
    return {
        "mutatingwebhookconfigurations": [webhooks.mutating(url, pem)],
        "validatingwebhookconfigurations": [webhooks.validating(url, pem)],
    }


def _authority(folder: Path, host: str) -> str:
    """The authority's certificate in PEM. One that is there stays: who read it at its own start goes on trusting the server."""
    import trustme
    from cryptography import x509

    ca, tls = folder / "ca.pem", folder / "tls.pem"
    if ca.is_file() and tls.is_file():
        leaf = x509.load_pem_x509_certificates(tls.read_bytes())[0]
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if host in {str(name.value) for name in names} and leaf.not_valid_after_utc > datetime.now(UTC) + timedelta(days=1):
            return ca.read_text()
    authority = trustme.CA()
    folder.mkdir(parents=True, exist_ok=True)
    authority.issue_cert(host, "localhost").private_key_and_cert_chain_pem.write_to_path(str(tls))
    authority.cert_pem.write_to_path(str(ca))
    return ca.read_text()


def _address(bind: str) -> tuple[str, int]:
    host, _, port = bind.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidInput("--bind", bind, "use HOST:PORT")
    return host.strip("[]"), int(port)


async def _serve_api(
    host: str, port: int, advertise: str, kubeconfig: Path | None, objects: Mapping[str, Sequence[dict[str, Any]]]
) -> None:
    from hami.sim.apiserver.app import Settings, serving

    if kubeconfig is not None:
        # One of an earlier run would name a server that is not up yet.
        await anyio.Path(kubeconfig).unlink(missing_ok=True)
    async with serving(Settings(host=host, port=port)) as server:
        for plural, items in objects.items():
            server.load(plural, items)
        if kubeconfig is not None:
            document = server.kubeconfig()
            if advertise:
                document["clusters"][0]["cluster"]["server"] = advertise
            await anyio.Path(kubeconfig).write_text(json.dumps(document))
        click.echo(server.url)
        await anyio.sleep_forever()


def _node(name: str) -> dict[str, Any]:
    room = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "gpu": "on"}},
        "status": {"capacity": room, "allocatable": dict(room), "conditions": [ready]},
    }


def _kubeconfig(function: Any) -> Any:
    return click.option("--kubeconfig", default="", metavar="FILE", help="Which API server; empty = the usual places.")(
        function
    )


@command.command("kubelet", cls=Verb)
@click.option("--node", required=True, metavar="NAME", help="The node that this kubelet runs.")
@click.option("--root", required=True, type=click.Path(path_type=Path), help="Folder of device-plugins/ and pod-resources/.")
@_kubeconfig
@pass_session
def kubelet(session: Session, node: str, root: Path, kubeconfig: str) -> None:
    """A kubelet: real device-plugin and pod-resources sockets, imagined containers."""
    run_process(session, _run_kubelet, node, root, kubeconfig)


async def _run_kubelet(node: str, root: Path, kubeconfig: str) -> None:
    from hami.kube.access import Kubeconfig
    from hami.kube.client import KubeClient
    from hami.sim.kubeapi import ClusterAccess
    from hami.sim.kubelet.node import SimKubelet

    async with KubeClient(Kubeconfig(kubeconfig)) as client:
        await SimKubelet(node, root, ClusterAccess(client), capacity={"cpu": "16", "memory": "64Gi", "pods": "110"}).run()


@command.command("scheduler", cls=Verb)
@click.option("--extender", required=True, metavar="URL", help="Where hami's scheduler listens.")
@click.option("--name", default="hami-scheduler", show_default=True, help="spec.schedulerName of the pods it places.")
@click.option("--authority", default="", metavar="FILE", help="Certificate of the authority behind an https extender.")
@_kubeconfig
@pass_session
def scheduler(session: Session, extender: str, name: str, authority: str, kubeconfig: str) -> None:
    """kube-scheduler's side of the extender protocol: its queue, its back-off, its events."""
    run_process(session, _run_scheduler, extender, name, authority, kubeconfig)


async def _run_scheduler(extender: str, name: str, authority: str, kubeconfig: str) -> None:
    import ssl

    from hami.kube.access import Kubeconfig
    from hami.kube.client import KubeClient
    from hami.sim.kubeapi import ClusterAccess
    from hami.sim.kubescheduler import Extender, KubeScheduler

    tls = ssl.create_default_context(cafile=authority) if authority else None
    async with KubeClient(Kubeconfig(kubeconfig)) as client:
        await KubeScheduler(ClusterAccess(client), Extender(url=extender), name=name, tls=tls).run()
