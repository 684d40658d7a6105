"""The capacity of a host: never over-committed, whatever the order of takes, releases and marks."""

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from dispatcher.errors import PodError
from dispatcher.outlets.base import Request, Slot
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.outlets.local.offer import read_offer


def take(capacity: LocalCapacity, gpus: int) -> Slot:
    slot = capacity.take(Request(gpus))
    assert slot is not None, f"no room for {gpus} GPUs, though {capacity.free_gpus} are free"
    return slot


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
    assert capacity.free_gpu_shares == 7
    assert take(capacity, 1).gpus == (0,), "a whole GPU was broken while a used one had room"


def test_fullest_gpu_is_filled_first() -> None:
    capacity = LocalCapacity([0, 1], cpu_slots=0, jobs_per_gpu=3)
    for index in (0, 1, 1):
        capacity.adopt(Slot((index,)))
    assert take(capacity, 1).gpus == (1,)


def test_several_gpus_need_whole_ones() -> None:
    capacity = LocalCapacity([0, 1], cpu_slots=0, jobs_per_gpu=2)
    single = take(capacity, 1)
    assert capacity.free_gpus == (0, 1) and capacity.whole_gpus == (1,)
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
    assert capacity.free_gpus == () and capacity.free_cpu == 0 and capacity.free_gpu_shares == 0
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
        free, whole, cpu = self.capacity.free_gpus, self.capacity.whole_gpus, self.capacity.free_cpu
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
            and self.capacity.whole_gpus == (0, 1, 2, 3)
            and self.capacity.free_gpu_shares == 8
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
