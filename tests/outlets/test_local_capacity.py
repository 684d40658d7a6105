"""The capacity of a host: never over-committed, whatever the order of takes, releases and marks."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from dispatcher.errors import PodError
from dispatcher.outlets.base import Request, Slot
from dispatcher.outlets.local.budget import Amounts
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.outlets.local.gpu_shares import GpuShares
from dispatcher.outlets.local.offer import Free, read_offer


def take(capacity: LocalCapacity, gpus: int) -> Slot:
    slot = capacity.take(Request(gpus))
    assert slot is not None, f"no room for {gpus} GPUs, though {capacity.free_gpus} are free"
    return slot


def whole_gpus(capacity: LocalCapacity) -> tuple[int, ...]:
    """The GPUs that an attempt on several can have."""
    return tuple(index for index in capacity.free_gpus if index not in capacity.occupied_gpus)


def free_gpu_shares(capacity: LocalCapacity) -> int:
    """How many attempts on one GPU there is room for."""
    slots = []
    while (slot := capacity.take(Request(1))) is not None:
        slots.append(slot)
    for slot in slots:
        capacity.release(slot)
    return len(slots)


def test_cpu_slots_and_gpus_are_counted_apart() -> None:
    capacity = LocalCapacity([0, 1], cpu_slots=2)
    assert [take(capacity, 0), take(capacity, 0)] == [Slot(), Slot()]
    assert capacity.take(Request(0)) is None and capacity.free_cpu == 0
    assert capacity.free_gpus == (0, 1)
    capacity.release(Slot())
    assert capacity.free_cpu == 1


def test_lowest_index_first() -> None:
    capacity = LocalCapacity([7, 2, 5], cpu_slots=0)
    assert [take(capacity, 1).gpus, take(capacity, 2).gpus] == [(2,), (5, 7)]
    assert capacity.take(Request(1)) is None


def test_partly_used_gpus_are_filled_before_whole_ones_are_broken() -> None:
    capacity = LocalCapacity([0, 1, 2], cpu_slots=0, jobs_per_gpu=3)
    first = take(capacity, 1)
    pair = take(capacity, 2)
    assert (first.gpus, pair.gpus) == ((0,), (1, 2))
    assert [take(capacity, 1).gpus, take(capacity, 1).gpus] == [(0,), (0,)]
    assert capacity.take(Request(1)) is None, "a GPU of a multi-GPU attempt was shared"
    capacity.release(first)
    capacity.release(pair)
    assert free_gpu_shares(capacity) == 7
    assert take(capacity, 1).gpus == (0,), "a whole GPU was broken while a used one had room"


def test_fullest_gpu_is_filled_first() -> None:
    capacity = LocalCapacity([0, 1], cpu_slots=0, jobs_per_gpu=3)
    for index in (0, 1, 1):
        capacity.adopt(Slot((index,)))
    assert take(capacity, 1).gpus == (1,)


def test_several_gpus_need_whole_ones() -> None:
    capacity = LocalCapacity([0, 1], cpu_slots=0, jobs_per_gpu=2)
    single = take(capacity, 1)
    assert capacity.free_gpus == (0, 1) and whole_gpus(capacity) == (1,)
    assert capacity.take(Request(2)) is None
    capacity.release(single)
    assert take(capacity, 2).gpus == (0, 1)


def test_unusable_gpus_get_nothing_new() -> None:
    capacity = LocalCapacity([0, 1, 2], cpu_slots=0)
    running = take(capacity, 1)
    capacity.quarantine(0, "3 uncorrectable ECC errors")
    capacity.mark_foreign({0: "900 MiB used by pid 4242", 1: "250 MiB used by pid 4243"})
    assert capacity.unusable == {0: "3 uncorrectable ECC errors", 1: "250 MiB used by pid 4243"}
    capacity.release(running)
    assert capacity.free_gpus == (2,)
    capacity.mark_foreign({})
    assert capacity.free_gpus == (1, 2)
    capacity.restore(0)
    capacity.restore(0)
    assert capacity.free_gpus == (0, 1, 2)


def test_refuses_what_could_never_run_here() -> None:
    capacity = LocalCapacity([0, 1], cpu_slots=0)
    take(capacity, 2)
    capacity.quarantine(0, "lost")
    assert [bool(capacity.refuses(Request(gpus))) for gpus in range(4)] == [True, False, False, True]
    assert not capacity.refuses(Request())
    assert capacity.refuses(Request(0)) == "asks for a CPU slot, this pod has none (--slots)"
    assert capacity.refuses(Request(3)) == "asks for 3 GPUs, this pod has 2"


def test_refuses_now_what_waits_for_gpus_that_cannot_be_used() -> None:
    capacity = LocalCapacity([0, 1], cpu_slots=0)
    take(capacity, 2)
    assert not capacity.refuses_now(Request(2)), "it only waits for a busy GPU"
    capacity.quarantine(1, "fell off the bus")
    expected = "asks for 2 GPUs, but 1 of 2 cannot be used now: GPU 1: fell off the bus"
    assert capacity.refuses_now(Request(2)) == expected
    assert not capacity.refuses_now(Request(1)) and not capacity.refuses_now(Request())


def test_free_gpus_are_kept_for_what_is_ahead() -> None:
    capacity = LocalCapacity([0, 1, 2], cpu_slots=1)
    take(capacity, 2)
    ahead = [Request(2)]
    assert capacity.take(Request(1), ahead) is None and capacity.take(Request(0), ahead) == Slot()
    assert capacity.take(Request(), ahead) is None, "the CPU slot is taken, the GPU is kept"
    assert capacity.take(Request(1), [Request(4)]) == Slot((2,)), "4 GPUs will never be free here"


@pytest.mark.parametrize("first", [Request(8), Request(1, gpu_memory_mib=79_000)])
def test_many_different_requests_cost_no_more_each_than_few(first: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that each ask for another amount of memory: none of them gets any, in either case."""
    picked = 0
    pick = GpuShares.pick

    def counted(self: GpuShares, *arguments: Any) -> Slot | None:
        nonlocal picked
        picked += 1
        return pick(self, *arguments)

    monkeypatch.setattr(GpuShares, "pick", counted)
    capacity = LocalCapacity(range(8), 0, gpu_memory_mib=dict.fromkeys(range(8), 80_000))
    taken = 1 if first.gpus == 8 else 8
    assert all(capacity.take(Request(1, gpu_memory_mib=79_000)) for _ in range(taken))
    ahead = [first]
    for number in range(100):
        request = Request(1, gpu_memory_mib=2000 + number)
        assert capacity.take(request, ahead) is None
        ahead.append(request)
    assert picked < 10 * len(ahead)


def test_what_is_kept_is_found_again_when_something_has_changed() -> None:
    capacity = LocalCapacity([0, 1, 2], cpu_slots=0)
    first, ahead = capacity.take(Request(1)), [Request(3)]
    assert first is not None
    assert capacity.take(Request(1), ahead) is None
    capacity.release(first)
    assert capacity.take(Request(1), ahead) is None, "all three are for the one that is ahead"
    capacity.quarantine(0, "lost")
    assert capacity.take(Request(1), ahead) == Slot((1,)), "which cannot have them now"
    assert capacity.take(Request(1)) == Slot((2,))


def test_full_when_no_request_would_get_a_slot() -> None:
    capacity = LocalCapacity([0], cpu_slots=1)
    assert not capacity.is_full
    take(capacity, 0)
    assert not capacity.is_full
    capacity.quarantine(0, "lost")
    assert capacity.is_full


def test_another_pod_reads_what_is_published() -> None:
    capacity = LocalCapacity([1, 4], cpu_slots=2)
    capacity.mark_foreign({4: "900 MiB used by pid 4242"})
    assert read_offer(msgspec.json.decode(msgspec.json.encode(capacity.offer()))) == capacity.offer()


def test_running_attempts_are_adopted_as_they_are() -> None:
    capacity = LocalCapacity([0, 1], cpu_slots=1)
    adopted = [Slot(gpus) for gpus in ((0,), (0,), (1, 9), (), ())]
    for slot in adopted:
        capacity.adopt(slot)
    assert capacity.free_gpus == () and capacity.free_cpu == 0 and free_gpu_shares(capacity) == 0
    assert capacity.occupied_gpus == {0, 1, 9}
    capacity.release(adopted[0])
    capacity.release(adopted[3])
    assert capacity.free_gpus == () and capacity.free_cpu == 0
    for slot in (adopted[1], adopted[2], adopted[4]):
        capacity.release(slot)
    assert (
        capacity.free_gpus == (0, 1) and capacity.free_cpu == 1 and not capacity.occupied_gpus and capacity.taken == ()
    )


def test_release_of_what_was_not_taken() -> None:
    capacity = LocalCapacity([0], cpu_slots=1)
    take(capacity, 1)
    capacity.release(Slot((0,)))
    with pytest.raises(ValueError, match=r"gpus=\(0,\)"):
        capacity.release(Slot((0,)))


@pytest.mark.parametrize(
    ("gpus", "cpu_slots", "jobs_per_gpu", "named"), [([0, 0], 0, 1, "[0, 0]"), ([], -1, 1, "-1"), ([0], 0, 0, "0")]
)
def test_impossible_pools(gpus: list[int], cpu_slots: int, jobs_per_gpu: int, named: str) -> None:
    with pytest.raises(PodError) as caught:
        LocalCapacity(gpus, cpu_slots, jobs_per_gpu)
    assert named in str(caught.value)


class Pool(RuleBasedStateMachine):
    """Attempts come and go while GPUs become unusable and usable again."""

    attempts = Bundle("attempts")
    gpu = st.integers(min_value=0, max_value=3)

    def __init__(self) -> None:
        super().__init__()
        self.capacity = LocalCapacity([0, 1, 2, 3], cpu_slots=2, jobs_per_gpu=2)
        self.held: list[Slot] = []

    @rule(target=attempts, gpus=st.integers(min_value=0, max_value=4))
    def take(self, gpus: int) -> Slot | None:
        free, whole, cpu = self.capacity.free_gpus, whole_gpus(self.capacity), self.capacity.free_cpu
        slot = self.capacity.take(Request(gpus))
        could = cpu > 0 if gpus == 0 else bool(free) if gpus == 1 else len(whole) >= gpus
        assert (slot is not None) == could
        if slot is not None:
            assert len(slot.gpus) == gpus
            assert not set(slot.gpus) & set(self.capacity.unusable)
            assert gpus < 2 or set(slot.gpus) <= set(whole)
            if gpus == 1 and set(free) - set(whole):
                assert slot.gpus[0] not in whole
            self.held.append(slot)
        return slot

    @rule(slot=consumes(attempts))
    def release(self, slot: Slot | None) -> None:
        if slot is not None:
            self.capacity.release(slot)
            self.held.remove(slot)

    @rule(index=gpu)
    def quarantine(self, index: int) -> None:
        self.capacity.quarantine(index, "lost")

    @rule(index=gpu)
    def restore(self, index: int) -> None:
        self.capacity.restore(index)

    @rule(indices=st.sets(gpu))
    def foreigners(self, indices: set[int]) -> None:
        self.capacity.mark_foreign(dict.fromkeys(indices, "pid 1"))

    @invariant()
    def is_never_over_committed(self) -> None:
        assert sum(not slot.gpus for slot in self.held) <= 2
        for index in range(4):
            users = [slot for slot in self.held if index in slot.gpus]
            assert len(users) <= (1 if any(len(slot.gpus) > 1 for slot in users) else 2)
        assert sorted(slot.gpus for slot in self.capacity.taken) == sorted(slot.gpus for slot in self.held)

    def teardown(self) -> None:
        for slot in self.held:
            self.capacity.release(slot)
        self.capacity.mark_foreign({})
        for index in range(4):
            self.capacity.restore(index)
        assert (
            self.capacity.free_cpu == 2
            and whole_gpus(self.capacity) == (0, 1, 2, 3)
            and free_gpu_shares(self.capacity) == 8
        )


TestPool = Pool.TestCase


H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"


def mixed(cpu_slots: int = 0) -> LocalCapacity:
    return LocalCapacity(range(4), cpu_slots, names={0: A100, 1: H100, 2: A100, 3: H100})


def test_an_attempt_gets_the_chip_that_it_asks_for() -> None:
    capacity = mixed(cpu_slots=1)
    assert capacity.take(Request(None, chip="h100")) == Slot((1,)), "a CPU slot is no h100"
    assert capacity.take(Request(2, chip="A100")) == Slot((0, 2))
    assert capacity.take(Request(1, chip="a100")) is None
    assert capacity.take(Request(1, chip="h100-80gb")) == Slot((3,))
    assert capacity.take(Request(0, chip="h100")) == Slot(), "a job without a GPU has no chip"


def test_gpus_are_kept_for_the_chip_that_comes_first_and_no_others() -> None:
    capacity = mixed()
    busy = capacity.take(Request(1, chip="h100"))
    assert busy == Slot((1,))
    pair = Request(2, chip="h100")
    assert capacity.take(pair) is None
    assert capacity.take(Request(1), [pair]) == Slot((0,))
    assert capacity.take(Request(1, chip="h100"), [pair]) is None, "the free one is kept for the pair"
    assert capacity.take(Request(1), [Request(2)]) is None
    capacity.release(busy)
    assert capacity.take(pair) == Slot((1, 3))


def by_memory(mib: int, gpus: int = 1) -> Request:
    return Request(gpus, gpu_memory_mib=mib)


def shared_gpus(*gib: int, **others: Any) -> LocalCapacity:
    return LocalCapacity(range(len(gib)), 1, gpu_memory_mib={n: size * 1024 for n, size in enumerate(gib)}, **others)


def places(capacity: LocalCapacity, *mib: int) -> list[tuple[int, ...] | None]:
    slots = [capacity.take(by_memory(each)) for each in mib]
    return [None if slot is None else slot.gpus for slot in slots]


def test_a_gpu_is_shared_by_memory_as_long_as_the_sum_fits() -> None:
    capacity = shared_gpus(80)
    first = capacity.take(by_memory(30 * 1024))
    assert first == Slot((0,), 30 * 1024, 1536 / 4096)
    assert places(capacity, 50 * 1024, 1) == [(0,), None]
    assert capacity.is_full is False and capacity.free_gpus == ()
    capacity.release(first)
    assert places(capacity, 30 * 1024 + 1, 30 * 1024) == [None, (0,)]


def test_memory_goes_where_the_least_that_is_enough_is_left_and_whole_gpus_stay_free() -> None:
    capacity = shared_gpus(40, 80, 80)
    # The smallest empty one, then what is in use, the fullest first.
    assert places(capacity, 30 * 1024, 50 * 1024, 20 * 1024, 9 * 1024, 4 * 1024) == [(0,), (1,), (1,), (0,), (1,)]
    assert whole_gpus(capacity) == (2,)


def test_a_gpu_is_shared_by_memory_or_by_number_and_never_both() -> None:
    capacity = shared_gpus(80, 80, jobs_per_gpu=2)
    by_number = take(capacity, 1)
    assert by_number == Slot((0,))
    assert places(capacity, 1024) == [(1,)]
    assert [take(capacity, 1).gpus, capacity.take(Request(1))] == [(0,), None]
    capacity.release(by_number)
    assert places(capacity, 80 * 1024) == [None], "GPU 0 has one that may use all of it"


def test_several_gpus_are_whole_and_large_enough() -> None:
    capacity = shared_gpus(24, 80, 80)
    assert capacity.take(by_memory(40 * 1024, gpus=2)) == Slot((1, 2))
    assert places(capacity, 30 * 1024, 24 * 1024) == [None, (0,)]


def test_a_gpu_whose_memory_is_not_known_is_not_shared_by_it() -> None:
    capacity = LocalCapacity([0, 1], 0, gpu_memory_mib={0: 8 * 1024})
    assert places(capacity, 10 * 1024, 10 * 1024, 4 * 1024) == [(1,), None, (0,)]
    assert Slot((1,)) in capacity.taken


def test_what_others_use_of_a_gpu_is_not_given() -> None:
    capacity = shared_gpus(24)
    capacity.note_memory({}, {0: 24 * 1024 - 80})
    assert not capacity.refuses(by_memory(24 * 1024)), "that may end"
    assert places(capacity, 24 * 1024, 24 * 1024 - 80) == [None, (0,)]


def test_the_one_with_most_room_is_kept_for_memory_that_comes_first() -> None:
    capacity = shared_gpus(24, 24)
    small = [capacity.take(by_memory(14 * 1024)), capacity.take(by_memory(12 * 1024))]
    assert [slot.gpus for slot in small if slot] == [(0,), (1,)]
    large = by_memory(20 * 1024)
    assert capacity.take(large) is None
    assert capacity.take(by_memory(11 * 1024), [large]) is None, "it fits only on GPU 1, which is kept"
    assert capacity.take(by_memory(10 * 1024), [large]) == Slot((0,), 10 * 1024, 1706 / 4096)
    # One without an amount waits for a GPU of its own, which small ones would never leave it.
    assert capacity.take(by_memory(1024), [Request(1)]) is None


def test_no_cpus_and_no_memory_are_given_that_are_not_there() -> None:
    capacity = LocalCapacity([0], 9, of_host=Amounts(cpus=8, memory_mib=1000))
    first = capacity.take(Request(0, cpus=6, memory_mib=700))
    assert first == Slot((), cpus=6, memory_mib=700)
    assert capacity.take(Request(0, cpus=3)) is None
    assert capacity.take(Request(1, memory_mib=301)) is None
    assert capacity.free_gpus == (0,), "what did not begin holds nothing"
    assert capacity.take(Request(0)) == Slot(), "what asks for nothing takes nothing"
    assert capacity.take(Request(1, cpus=2, memory_mib=300)) == Slot((0,), cpus=2, memory_mib=300)
    capacity.release(first)
    assert capacity.take(Request(0, cpus=6)) is not None


def test_cpus_are_kept_for_what_comes_first_and_has_its_slot() -> None:
    capacity = LocalCapacity([0, 1], 2, of_host=Amounts(cpus=8))
    assert capacity.take(Request(0, cpus=4)) is not None
    wide, single = Request(1, cpus=8), Request(1)
    assert capacity.take(wide) is None
    assert capacity.take(Request(0, cpus=1), [wide]) is None
    assert capacity.take(single, [wide]) == Slot((1,)), "one GPU is kept for it, the other one is not"
    assert capacity.take(single, [wide]) is None
    assert capacity.take(Request(0), [wide]) == Slot()


def test_attempts_that_were_found_again_count_although_they_are_too_many() -> None:
    capacity = shared_gpus(24, of_host=Amounts(cpus=2))
    for _ in range(2):
        capacity.adopt(Slot((0,), 20 * 1024, 0.8, cpus=2))
    assert capacity.offer().free == Free(cpus=0, gpu_memory_mib={0: 0})
    capacity.release(Slot((0,), 20 * 1024, 0.8, cpus=2))
    assert places(capacity, 4 * 1024) == [(0,)]
    assert capacity.slot_text(Slot((0,), 1536)) == "gpu 0 (1.5G)"


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 1, 1, 2]), st.sampled_from([None, 1, 5, 9, 24]), st.integers(0, 4))),
    st.integers(1, 2),
)
def test_sums_never_exceed_what_there_is(asked: list[tuple[int, int | None, int]], jobs_per_gpu: int) -> None:
    capacity = LocalCapacity([0, 1], 2, jobs_per_gpu, gpu_memory_mib={0: 24, 1: 10}, of_host=Amounts(cpus=6))
    ahead: list[Request] = []
    held: list[Slot] = []
    for gpus, mib, cpus in asked:
        request = Request(gpus, gpu_memory_mib=mib if gpus else None, cpus=cpus or None)
        slot = capacity.take(request, ahead)
        if slot is not None:
            held.append(slot)
        elif held and len(ahead) > 1:
            capacity.release(held.pop(0))
            ahead.clear()
        else:
            ahead.append(request)
        assert sum(one.cpus for one in held) <= 6
        for index, size in ((0, 24), (1, 10)):
            users = [one for one in held if index in one.gpus]
            by_mib = [one.gpu_memory_mib for one in users if one.gpu_memory_mib]
            assert sum(by_mib) <= size and sum(one.gpu_share or 0 for one in users) <= 1
            assert not by_mib or len(by_mib) == len(users)
            assert by_mib or len(users) <= (1 if any(len(one.gpus) > 1 for one in users) else jobs_per_gpu)
