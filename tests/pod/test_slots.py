"""The pool of slots: never over-committed, whatever the order of takes, releases and marks."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from dispatcher.errors import PodError
from dispatcher.outlets.base import Slot
from dispatcher.outlets.local.slots import Slots


def take(slots: Slots, gpus: int) -> Slot:
    slot = slots.take(gpus)
    assert slot is not None, f"no room for {gpus} GPUs, though {slots.free_gpus} are free"
    return slot


def test_cpu_slots_and_gpus_are_counted_apart() -> None:
    slots = Slots([0, 1], cpu_slots=2)
    assert [take(slots, 0), take(slots, 0)] == [Slot(), Slot()]
    assert slots.take(0) is None and slots.free_cpu == 0
    assert slots.free_gpus == (0, 1)
    slots.release(Slot())
    assert slots.free_cpu == 1


def test_lowest_index_first() -> None:
    slots = Slots([7, 2, 5], cpu_slots=0)
    assert [take(slots, 1).gpus, take(slots, 2).gpus] == [(2,), (5, 7)]
    assert slots.take(1) is None


def test_partly_used_gpus_are_filled_before_whole_ones_are_broken() -> None:
    slots = Slots([0, 1, 2], cpu_slots=0, jobs_per_gpu=3)
    first = take(slots, 1)
    pair = take(slots, 2)
    assert (first.gpus, pair.gpus) == ((0,), (1, 2))
    assert [take(slots, 1).gpus, take(slots, 1).gpus] == [(0,), (0,)]
    assert slots.take(1) is None, "a GPU of a multi-GPU attempt was shared"
    slots.release(first)
    slots.release(pair)
    assert slots.free_gpu_shares == 7
    assert take(slots, 1).gpus == (0,), "a whole GPU was broken while a used one had room"


def test_fullest_gpu_is_filled_first() -> None:
    slots = Slots([0, 1], cpu_slots=0, jobs_per_gpu=3)
    slots.adopt([0])
    slots.adopt([1])
    slots.adopt([1])
    assert take(slots, 1).gpus == (1,)


def test_several_gpus_need_whole_ones() -> None:
    slots = Slots([0, 1], cpu_slots=0, jobs_per_gpu=2)
    single = take(slots, 1)
    assert slots.free_gpus == (0, 1) and slots.whole_gpus == (1,)
    assert slots.take(2) is None
    slots.release(single)
    assert take(slots, 2).gpus == (0, 1)


def test_unusable_gpus_get_nothing_new() -> None:
    slots = Slots([0, 1, 2], cpu_slots=0)
    running = take(slots, 1)
    slots.quarantine(0, "3 uncorrectable ECC errors")
    slots.mark_foreign({0: "900 MiB used by pid 4242", 1: "250 MiB used by pid 4243"})
    assert slots.unusable == {0: "3 uncorrectable ECC errors", 1: "250 MiB used by pid 4243"}
    slots.release(running)
    assert slots.free_gpus == (2,)
    slots.mark_foreign({})
    assert slots.free_gpus == (1, 2)
    slots.restore(0)
    slots.restore(0)
    assert slots.free_gpus == (0, 1, 2)


def test_fits_says_what_could_ever_run_here() -> None:
    slots = Slots([0, 1], cpu_slots=0)
    take(slots, 2)
    slots.quarantine(0, "lost")
    assert [slots.fits(gpus) for gpus in range(4)] == [False, True, True, False]


def test_running_attempts_are_adopted_as_they_are() -> None:
    slots = Slots([0, 1], cpu_slots=1)
    adopted = [slots.adopt(gpus) for gpus in ([0], [0], [9, 1], [], [])]
    assert slots.free_gpus == () and slots.free_cpu == 0 and slots.free_gpu_shares == 0
    assert slots.occupied_gpus == {0, 1, 9}
    slots.release(adopted[0])
    slots.release(adopted[3])
    assert slots.free_gpus == () and slots.free_cpu == 0
    for slot in (adopted[1], adopted[2], adopted[4]):
        slots.release(slot)
    assert slots.free_gpus == (0, 1) and slots.free_cpu == 1 and not slots.occupied_gpus and slots.taken == ()


def test_release_of_what_was_not_taken() -> None:
    slots = Slots([0], cpu_slots=1)
    take(slots, 1)
    slots.release(Slot((0,)))
    with pytest.raises(ValueError, match=r"gpus=\(0,\)"):
        slots.release(Slot((0,)))


@pytest.mark.parametrize(
    ("gpus", "cpu_slots", "jobs_per_gpu", "named"), [([0, 0], 0, 1, "[0, 0]"), ([], -1, 1, "-1"), ([0], 0, 0, "0")]
)
def test_impossible_pools(gpus: list[int], cpu_slots: int, jobs_per_gpu: int, named: str) -> None:
    with pytest.raises(PodError) as caught:
        Slots(gpus, cpu_slots, jobs_per_gpu)
    assert named in str(caught.value)


class Pool(RuleBasedStateMachine):
    """Attempts come and go while GPUs become unusable and usable again."""

    attempts = Bundle("attempts")
    gpu = st.integers(min_value=0, max_value=3)

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots([0, 1, 2, 3], cpu_slots=2, jobs_per_gpu=2)
        self.held: list[Slot] = []

    @rule(target=attempts, gpus=st.integers(min_value=0, max_value=4))
    def take(self, gpus: int) -> Slot | None:
        free, whole, cpu = self.slots.free_gpus, self.slots.whole_gpus, self.slots.free_cpu
        slot = self.slots.take(gpus)
        could = cpu > 0 if gpus == 0 else bool(free) if gpus == 1 else len(whole) >= gpus
        assert (slot is not None) == could
        if slot is not None:
            assert len(slot.gpus) == gpus
            assert not set(slot.gpus) & set(self.slots.unusable)
            assert gpus < 2 or set(slot.gpus) <= set(whole)
            if gpus == 1 and set(free) - set(whole):
                assert slot.gpus[0] not in whole
            self.held.append(slot)
        return slot

    @rule(slot=consumes(attempts))
    def release(self, slot: Slot | None) -> None:
        if slot is not None:
            self.slots.release(slot)
            self.held.remove(slot)

    @rule(index=gpu)
    def quarantine(self, index: int) -> None:
        self.slots.quarantine(index, "lost")

    @rule(index=gpu)
    def restore(self, index: int) -> None:
        self.slots.restore(index)

    @rule(indices=st.sets(gpu))
    def foreigners(self, indices: set[int]) -> None:
        self.slots.mark_foreign(dict.fromkeys(indices, "pid 1"))

    @invariant()
    def is_never_over_committed(self) -> None:
        assert sum(not slot.gpus for slot in self.held) <= 2
        for index in range(4):
            users = [slot for slot in self.held if index in slot.gpus]
            assert len(users) <= (1 if any(len(slot.gpus) > 1 for slot in users) else 2)
        assert sorted(slot.gpus for slot in self.slots.taken) == sorted(slot.gpus for slot in self.held)

    def teardown(self) -> None:
        for slot in self.held:
            self.slots.release(slot)
        self.slots.mark_foreign({})
        for index in range(4):
            self.slots.restore(index)
        assert self.slots.free_cpu == 2 and self.slots.whole_gpus == (0, 1, 2, 3) and self.slots.free_gpu_shares == 8


TestPool = Pool.TestCase
