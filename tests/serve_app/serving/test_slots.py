import multiprocessing
import signal
import threading

import pytest

from ray_model_serving.serving.slots import NoLoadSlotError, load_slot

PATIENCE_S = 10.0


def hold(locks, held):
    with load_slot(locks, at_once=1, deadline_s=PATIENCE_S):
        held.set()
        threading.Event().wait(60)


def test_no_more_loads_run_than_there_are_slots(tmp_path):
    with load_slot(tmp_path, at_once=2, deadline_s=0), load_slot(tmp_path, at_once=2, deadline_s=0):
        third = load_slot(tmp_path, at_once=2, deadline_s=0.1)
        with pytest.raises(NoLoadSlotError, match="2 loads were under way") as caught:
            third.__enter__()
        assert not caught.value.permanent, "the other loads end some time"
    with load_slot(tmp_path, at_once=2, deadline_s=0):
        pass


def test_a_waiting_load_goes_on_when_another_ends(tmp_path):
    entered = threading.Event()

    def wait_for_slot() -> None:
        with load_slot(tmp_path, at_once=1, deadline_s=PATIENCE_S):
            entered.set()

    thread = threading.Thread(target=wait_for_slot)
    with load_slot(tmp_path, at_once=1, deadline_s=0):
        thread.start()
        assert not entered.wait(0.1)
    assert entered.wait(PATIENCE_S)
    thread.join()


def test_the_slot_of_a_killed_process_is_free_again(tmp_path):
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=hold, args=(tmp_path, held))
    process.start()
    try:
        assert held.wait(30)
        with pytest.raises(NoLoadSlotError), load_slot(tmp_path, at_once=1, deadline_s=0):
            pass
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    with load_slot(tmp_path, at_once=1, deadline_s=1):
        pass


def test_a_slot_is_given_back_when_the_load_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), load_slot(tmp_path, at_once=1, deadline_s=0):
        raise ZeroDivisionError
    with load_slot(tmp_path, at_once=1, deadline_s=0):
        pass
