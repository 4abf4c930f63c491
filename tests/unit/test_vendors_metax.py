"""MetaX: whole cards by the node's own tables; shared ones by classes of pods, policies and link zones."""

from typing import Any

import msgspec
import pytest

from hami.domain.allocation import ContainerShares
from hami.domain.cluster import ClusterSnapshot, NodeState
from hami.domain.device import Device, DeviceState, DeviceUsage, Health
from hami.domain.pod import Node, Pod
from hami.domain.request import PodRequest
from hami.domain.units import CorePercent, MiB, Slots
from hami.events.catalog.allocation import AllocationReserved
from hami.events.catalog.union import Event
from hami.projections.checkpoint import decode_state, encode_state
from hami.projections.folds.cluster import apply, new_cluster, snapshot
from hami.projections.folds.state import ClusterState
from hami.scheduler.decide.admit import AdmissionSettings, Admitted, Denied, Ignored, mutate
from hami.scheduler.decide.fit import Fit, Misfit, fit_node, question
from hami.scheduler.decide.place import Placement, Unschedulable, place, place_exactly
from hami.scheduler.decide.planes import Planes
from hami.scheduler.decide.policies import SchedulingPolicy
from hami.scheduler.decide.reconcile import reconcile
from hami.scheduler.decide.reserve import binding_annotations
from hami.scheduler.decide.shortages import shortages
from hami.scheduler.decide.words import wishes_in
from hami.scheduler.dryrun import node_state
from hami.scheduler.podfacts import Relevance
from hami.vendors.announced import announced as read_patiently
from hami.vendors.config import DeviceConfig, device_config
from hami.vendors.registry import by_word, vendors_of
from hami.vendors.requests import pod_request
from hami.vendors.vendor import Vendor
from tests.support.builders import a_bound, a_node_registered, a_released, a_reservation, a_reserved, records_of

VENDORS = vendors_of(DeviceConfig())
ZONED = vendors_of(device_config({"metax": {"resourceVCountName": "metax-tech.com/sgpu", "sgpuTopologyAware": "true"}}))
GPU, SGPU = "metax-tech.com/gpu", "metax-tech.com/sgpu"
MEMORY, CORES = "metax-tech.com/vmemory", "metax-tech.com/vcore"
CLASS, QOS = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
PACKED = SchedulingPolicy(node="binpack", device="binpack")
SPREAD = SchedulingPolicy(node="spread", device="binpack")
HALF = {SGPU: "1", MEMORY: "16", CORES: "50"}
ALLOCATED = "hami.io/metax-sgpu-devices-allocated"


def pod_of(*containers: dict[str, str], **notes: str) -> Pod:
    named = {f"metax-tech.com/sgpu-{key.replace('_', '-')}": value for key, value in notes.items()}
    raw: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": named},
        "spec": {"containers": [{"name": f"c{n}", "resources": {"limits": each}} for n, each in enumerate(containers)]},
    }
    return msgspec.convert(raw, Pod)


def ask(*containers: dict[str, str], **notes: str) -> PodRequest:
    return pod_request(pod_of(*containers, **notes), VENDORS)


def card(number: int, *notes: str, zone: int = 0, policy: str = "", used: int | None = None, **more: Any) -> DeviceState:
    """Half of it is taken where anything is."""
    count = len(notes) if used is None else used
    return DeviceState(
        device=Device(
            uuid=f"GPU-{number}",
            vendor="Metax-SGPU",
            model="Metax-SGPU",
            memory=MiB(65536),
            cores=CorePercent(100),
            slots=Slots(16),
            index=number,
            attributes={"LinkZone": str(zone), "QosPolicy": policy},
        ),
        used=DeviceUsage(count, 32768 if count else 0, 50 if count else 0),
        notes=notes,
        **more,
    )


def fit(request: PodRequest, *cards: DeviceState) -> Fit | Misfit:
    return fit_node(NodeState(name="n", devices=cards), question(request, PACKED, VENDORS, {}))


def numbers(verdict: Fit | Misfit) -> list[list[int]]:
    assert isinstance(verdict, Fit), verdict
    return [[share.index for share in each.shares] for each in verdict.containers]


def reason(verdict: Fit | Misfit) -> str:
    assert isinstance(verdict, Misfit), verdict
    return verdict.reason


def placed(
    request: PodRequest, *nodes: NodeState, vendors: tuple[Vendor, ...] = VENDORS, policy: SchedulingPolicy = PACKED
) -> Placement:
    """By the planes; the exact way has to say the same."""
    known = ClusterSnapshot(nodes={each.name: each for each in nodes})
    planes = Planes(vendors)
    planes.sync(known)
    names = list(known.nodes)
    found, exact = place(known, planes, request, names, policy), place_exactly(known, vendors, request, names, policy)
    assert isinstance(found, Placement)
    assert isinstance(exact, Placement)
    assert (found.node, found.score, found.containers) == (exact.node, exact.score, exact.containers)
    return found


# --- whole cards ---


def whole_node(name: str, cards: int = 4, **tables: str) -> NodeState:
    notes = {f"metax-tech.com/gpu.topology.{key}": value for key, value in tables.items()}
    raw = {"metadata": {"name": name, "annotations": notes}, "status": {"capacity": {GPU: str(cards)}}}
    return node_state(msgspec.convert(raw, Node), VENDORS)


def test_packed_nodes_are_chosen_by_their_losses_and_spread_ones_by_their_scores() -> None:
    one = whole_node("one", losses='{"2": 300}', scores='{"2": 10}')
    other = whole_node("other", losses='{"2": 100}', scores='{"2": 400}')
    request = ask({GPU: "2"})
    packed, spread = placed(request, one, other), placed(request, one, other, policy=SPREAD)
    assert (packed.node, packed.score) == ("other", 1900)
    assert (spread.node, spread.score) == ("other", 1600)


@pytest.mark.parametrize("table", ["bad", '{"1": 5}', "null", '{"2": 1.5}'])
def test_a_table_that_says_nothing_of_so_many_cards_loses_nothing(table: str) -> None:
    assert placed(ask({GPU: "2"}), whole_node("n", losses=table)).score == 2000


def test_a_node_without_a_table_is_as_good_as_its_load() -> None:
    assert placed(ask({GPU: "2"}), whole_node("n", scores='{"2": 7}')).score == 0


def test_only_one_container_of_a_pod_can_have_whole_cards() -> None:
    verdict = fit_node(whole_node("n"), question(ask({GPU: "1"}, {GPU: "1"}), PACKED, VENDORS, {}))
    assert reason(verdict) == "1/4 CardTimeSlicingExhausted, 3/4 CardNotFoundCustomFilterRule"


def test_a_file_without_the_section_sells_nothing_and_each_count_sells_its_own() -> None:
    def words(section: dict[str, str]) -> list[str]:
        return [each.word for each in vendors_of(device_config({"nvidia": {"resourceCountName": ""}, "metax": section}))]

    assert words({}) == []
    assert words({"resourceCountName": GPU}) == ["Metax-GPU"]
    assert words({"resourceVCountName": SGPU}) == ["Metax-SGPU"]


# --- shared cards: what is asked, what is announced ---


def test_memory_is_in_gib_and_requests_do_not_count() -> None:
    (container,) = ask({SGPU: "2", MEMORY: "16"}).containers
    (asked,) = container.requests
    assert (asked.count, asked.memory, asked.memory_percent, asked.cores) == (2, 16 * 1024, 0, 100)
    raw = {"metadata": {}, "spec": {"containers": [{"name": "c", "resources": {"requests": {SGPU: "1"}}}]}}
    assert not pod_request(msgspec.convert(raw, Pod), VENDORS).asks_for_devices


def test_without_memory_the_whole_cards_memory_is_meant_and_more_than_all_cores_never_fit() -> None:
    verdict = fit(ask({SGPU: "1", CORES: "20"}), card(0))
    assert isinstance(verdict, Fit)
    assert (verdict.containers[0].shares[0].memory, verdict.containers[0].shares[0].cores) == (65536, 20)
    assert reason(fit(ask({SGPU: "1", CORES: "120"}), card(0))) == "1/1 CardInsufficientCore"


def announced(text: str) -> tuple[Device, ...]:
    vendor = by_word(VENDORS, "Metax-SGPU")
    assert vendor is not None
    node = msgspec.convert({"metadata": {"name": "n", "annotations": {vendor.keys.register: text}}}, Node)
    return read_patiently(node, vendor).devices


def test_a_node_announces_cards_in_their_order_with_policy_and_zone() -> None:
    first, second = announced(
        '[{"uuid":"GPU-a","model":"C500","totalDevCount":16,"totalCompute":100,"totalVRam":65536,"healthy":true,'
        '"qosPolicy":"fixed-share","linkZone":2,"availableVRam":5,"extra":{}},{"UUID":"GPU-b"}]'
    )
    assert (first.uuid, first.index, first.slots, first.memory, first.cores) == ("GPU-a", 0, 16, 65536, 100)
    assert first.attributes == {"Model": "C500", "QosPolicy": "fixed-share", "LinkZone": "2"}
    assert (second.uuid, second.index, second.health) == ("GPU-b", 1, Health.UNHEALTHY)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "[7]", "[null]", '[{"uuid":1}]', '[{"totalVRam":4294967296}]'])
def test_an_unreadable_announcement_is_no_card(text: str) -> None:
    assert announced(text) == ()


def admit(*containers: dict[str, str], **notes: str) -> Admitted | Denied | Ignored:
    return mutate(pod_of(*containers, **notes), AdmissionSettings(vendors=VENDORS), ClusterSnapshot())


def test_a_pod_without_a_policy_gets_best_effort_and_an_online_one_none() -> None:
    plain, online = admit(HALF), admit(HALF, app_class="online")
    assert isinstance(plain, Admitted)
    assert isinstance(online, Admitted)
    written = msgspec.json.encode(plain.patch).decode()
    assert "best-effort" in written
    assert "best-effort" not in msgspec.json.encode(online.patch).decode()


@pytest.mark.parametrize(
    ("containers", "notes", "told"),
    [
        ([HALF], {"app_class": "batch"}, f"{CLASS} must be set one of [online, offline]"),
        ([{SGPU: "2"}], {"app_class": "offline"}, "app-class pod must request single device"),
        ([HALF], {"qos_policy": "mine"}, f"{QOS} must be set one of [best-effort, fixed-share, burst-share]"),
        ([HALF], {"app_class": "offline", "qos_policy": ""}, f"{QOS} must be set one of"),
    ],
)
def test_words_of_their_own_are_refused(containers: list[dict[str, str]], notes: dict[str, str], told: str) -> None:
    answer = admit(*containers, **notes)
    assert isinstance(answer, Denied)
    assert told in answer.message


# --- shared cards: who lies beside whom ---

NORMAL, ONLINE, OFFLINE = ":best-effort", "online", "offline:best-effort"


@pytest.mark.parametrize(
    ("own", "there", "fits"),
    [
        ("", [NORMAL], True),
        ("", [ONLINE], False),
        ("", [NORMAL, OFFLINE], False),
        ("online", [NORMAL], False),
        ("online", [ONLINE], True),
        ("online", [OFFLINE], True),
        ("offline", [NORMAL], False),
        ("offline", [OFFLINE], True),
        ("offline", [OFFLINE, ONLINE], False),
    ],
)
def test_classes_bear_each_other_or_not(own: str, there: list[str], fits: bool) -> None:
    notes = {"qos_policy": "best-effort"} | ({"app_class": own} if own else {})
    verdict = fit(ask(HALF, **notes), card(0, *there))
    assert isinstance(verdict, Fit) if fits else reason(verdict) == "1/1 CardAppClassMismatch"


def test_an_online_pod_holds_memory_and_no_cores_even_of_a_card_without_any_left() -> None:
    full = msgspec.structs.replace(card(0, OFFLINE), used=DeviceUsage(1, 32768, 100))
    request = ask({SGPU: "1", MEMORY: "8"}, app_class="online")
    verdict = fit(request, full)
    assert isinstance(verdict, Fit)
    assert (verdict.containers[0].shares[0].memory, verdict.containers[0].shares[0].cores) == (8192, 0)
    written = binding_annotations(
        verdict.containers, VENDORS, reservation_id="r", node=NodeState(name="n"), now_s=1, request=request
    )
    assert written["metax-tech.com/gpu-devices-allocated"] == '[[{"uuid":"GPU-0","vRam":8192}]]'
    assert reason(fit(ask({SGPU: "1", MEMORY: "40"}, app_class="online"), full)) == "1/1 CardInsufficientMemory"


def test_an_online_pod_takes_the_emptiest_card_and_rather_none_that_has_offline_pods_alone() -> None:
    request = ask(HALF, app_class="online")
    assert numbers(fit(request, card(0, ONLINE), card(1, OFFLINE), card(2))) == [[2]]
    assert numbers(fit(request, card(0, ONLINE, ONLINE), card(1, OFFLINE), card(2, ONLINE, OFFLINE))) == [[2]]
    assert numbers(fit(request, card(0, OFFLINE, OFFLINE), card(1, OFFLINE))) == [[1]]


def test_an_online_pod_goes_where_it_disturbs_least_under_either_policy() -> None:
    request = ask(HALF, app_class="online")
    quiet = NodeState(name="quiet", devices=(card(0, ONLINE, OFFLINE),))
    loud = NodeState(name="loud", devices=(card(0, OFFLINE),))
    packed, spread = placed(request, loud, quiet), placed(request, loud, quiet, policy=SPREAD)
    assert packed.node == spread.node == "quiet"
    assert round(packed.score, -4) == -220_000
    assert round(spread.score, -4) == 220_000


@pytest.mark.parametrize(
    ("policy", "there", "reported", "fits"),
    [
        ("fixed-share", [":fixed-share"], "", True),
        ("fixed-share", [":burst-share"], "fixed-share", False),
        ("burst-share", [":"], "fixed-share", True),
        ("fixed-share", [""], "fixed-share", True),
        ("fixed-share", [""], "burst-share", False),
        ("fixed-share", [""], "", True),
    ],
)
def test_a_card_in_use_is_shared_by_one_policy(policy: str, there: list[str], reported: str, fits: bool) -> None:
    """The policy that the last pod set counts before the one that the node reports: the plugin follows later."""
    known = [note for note in there if note]
    verdict = fit(ask(HALF, qos_policy=policy), card(0, *known, policy=reported, used=1))
    assert isinstance(verdict, Fit) if fits else reason(verdict) == "1/1 CardQosPolicyMismatch"


def test_an_idle_card_takes_any_policy_and_keeps_to_it_for_the_pods_other_containers() -> None:
    quarter = {SGPU: "1", MEMORY: "8", CORES: "25"}
    assert numbers(fit(ask(quarter, quarter, qos_policy="fixed-share"), card(0, policy="burst-share"))) == [[0], [0]]


def test_a_sick_card_is_told_in_metax_own_word_and_told_how_to_mend() -> None:
    sick = card(0, health=Health.UNHEALTHY)
    node = NodeState(name="n", devices=(sick,))
    request = ask(HALF, app_class="online")
    found = place_exactly(ClusterSnapshot(nodes={"n": node}), VENDORS, request, ["n"], PACKED)
    assert isinstance(found, Unschedulable)
    assert found.reasons == {"n": "1/1 CardUnhealthy"}
    (line,) = shortages(ClusterSnapshot(nodes={"n": node}), VENDORS, request, found.reasons)
    assert "GPU-0" in line.change


# --- shared cards: link zones ---

WHOLE = {SGPU: "2"}


def zones(*numbers_of_zones: int) -> list[DeviceState]:
    return [card(number, zone=zone) for number, zone in enumerate(numbers_of_zones)]


@pytest.mark.parametrize(
    ("of_cards", "count", "taken"),
    [
        ((1, 1, 1, 2, 2, 0), 2, {3, 4}),
        ((1, 1, 1, 2, 2, 0), 3, {0, 1, 2}),
        ((1, 1, 1, 2, 2, 0), 4, {3, 4, 1, 2}),
        ((0, 1, -1, 2), 3, {1, 3, 2}),
    ],
)
def test_whole_cards_come_from_the_smallest_zone_that_has_enough(
    of_cards: tuple[int, ...], count: int, taken: set[int]
) -> None:
    (found,) = numbers(fit(ask({SGPU: str(count)}), *zones(*of_cards)))
    assert set(found) == taken


def test_parts_of_cards_and_pods_with_a_class_do_not_look_for_zones() -> None:
    assert numbers(fit(ask({SGPU: "2", CORES: "50"}), *zones(1, 1, 2, 2, 3))) == [[4, 3]]
    assert numbers(fit(ask(WHOLE, app_class="offline"), *zones(1, 1, 2, 2, 3))) == [[4, 3]]


def test_the_node_where_the_choice_breaks_fewest_links_wins_under_either_policy() -> None:
    whole = NodeState(name="a", devices=tuple(zones(1, 1, 1, 1)))
    pairs = NodeState(name="b", devices=tuple(zones(1, 1, 2, 2)))
    for policy in (PACKED, SPREAD):
        assert placed(ask(WHOLE), whole, pairs, vendors=ZONED, policy=policy).node == "b"
    assert placed(ask(WHOLE), whole, pairs, vendors=ZONED).score == 1_000_000
    assert placed(ask(WHOLE), pairs, vendors=ZONED, policy=SPREAD).score == -1_000_000


@pytest.mark.parametrize(
    ("vendors", "said", "score"),
    [
        (VENDORS, {}, 0),
        (VENDORS, {"topology_aware": "true"}, 1_000_000),
        (VENDORS, {"topology_aware": "often"}, 0),
        (ZONED, {"topology_aware": "often"}, 1_000_000),
        (ZONED, {"topology_aware": "false"}, 0),
    ],
)
def test_whether_zones_count_is_the_pods_word_or_else_the_configurations(
    vendors: tuple[Vendor, ...], said: dict[str, str], score: int
) -> None:
    node = NodeState(name="n", devices=tuple(zones(1, 1, 2, 2)))
    assert placed(ask(WHOLE, **said), node, vendors=vendors).score == score


# --- what the log knows ---


def after(*events: Event, onto: ClusterState | None = None) -> ClusterState:
    state = onto or new_cluster()
    for record in records_of(events, after=state.position.g, versions=dict(state.versions)):
        apply(state, record)
    return state


def shares(request: PodRequest, state: ClusterState) -> tuple[ContainerShares, ...]:
    found = place_exactly(snapshot(state), VENDORS, request, list(state.nodes), PACKED)
    assert isinstance(found, Placement), found
    return found.containers


NODE = a_node_registered(card(0, policy="burst-share").device, vendor="Metax-SGPU")


def test_a_pods_class_and_policy_stay_on_its_card_as_long_as_it_does() -> None:
    state = after(NODE)
    first = a_reservation("r1", *shares(ask(HALF, app_class="offline", qos_policy="fixed-share"), state), pod="u1")
    after(a_reserved(first), onto=state)
    second = a_reservation("r2", *shares(ask(HALF, app_class="online"), state), pod="u2")
    after(a_reserved(second), onto=state)
    assert list(state.nodes["n1"].devices[0].notes) == ["offline:fixed-share", "online"]
    refused = place_exactly(snapshot(state), VENDORS, ask(HALF, app_class="offline"), ["n1"], PACKED)
    assert isinstance(refused, Unschedulable)
    assert refused.reasons == {"n1": "1/1 CardAppClassMismatch"}
    after(a_bound(first), a_released(first), onto=state)
    assert list(state.nodes["n1"].devices[0].notes) == ["online"]
    after(a_released(second), onto=state)
    assert shares(ask(HALF, qos_policy="best-effort"), state)


def test_a_checkpoint_and_a_new_registration_keep_what_runs_on_a_card() -> None:
    state = after(NODE)
    held = a_reservation("r1", *shares(ask(HALF, app_class="offline"), state), pod="u1")
    after(a_reserved(held), onto=state)
    restored = decode_state(encode_state(state))
    assert list(restored.nodes["n1"].devices[0].notes) == ["offline:"]
    again = after(a_node_registered(card(0, policy="best-effort").device, vendor="Metax-SGPU", boot_id="b2"), onto=restored)
    assert list(again.nodes["n1"].devices[0].notes) == ["offline:"]
    after(a_released(held), onto=again)
    assert list(again.nodes["n1"].devices[0].notes) == []


def test_a_pods_own_reservation_does_not_stand_in_its_way() -> None:
    state = after(NODE)
    request = ask(HALF, app_class="online")
    after(a_reserved(a_reservation("r1", *shares(request, state), pod="u")), onto=state)
    small = pod_request(pod_of(HALF, qos_policy="fixed-share"), VENDORS)
    known = snapshot(state)
    planes = Planes(VENDORS)
    planes.sync(known)
    assert isinstance(place(known, planes, small, ["n1"], PACKED), Unschedulable)
    assert isinstance(place(known, planes, small, ["n1"], PACKED, exclude_owner="u"), Placement)


def test_an_adopted_pod_brings_its_class_and_leaves_the_policy_to_its_node() -> None:
    raw = msgspec.to_builtins(pod_of(HALF, app_class="offline", qos_policy="fixed-share"))
    raw["metadata"]["annotations"][ALLOCATED] = "GPU-0,Metax-SGPU,16384,50:;"
    raw["spec"]["nodeName"] = "n1"
    facts = Relevance(VENDORS).facts(msgspec.convert(raw, Pod))
    reserved, *_ = reconcile(ClusterSnapshot(), {"u": facts}, VENDORS, now_ms=0)
    assert isinstance(reserved, AllocationReserved)
    assert [share.note for each in reserved.reservation.containers for share in each.shares] == ["offline"]


def test_the_log_holds_what_a_placement_read() -> None:
    notes = {CLASS: "online", QOS: "fixed-share", "metax-tech.com/sgpu-topology-aware": "true", "mine": "x"}
    assert wishes_in(notes, VENDORS) == {key: value for key, value in notes.items() if key != "mine"}


@pytest.mark.parametrize("notes", [{"app_class": "x" * 999}, {"qos_policy": "x" * 999}])
def test_words_that_admission_refuses_do_not_reach_the_log(notes: dict[str, str]) -> None:
    (container,) = shares(ask(HALF, **notes), after(NODE))
    assert len(container.shares[0].note) < 20
