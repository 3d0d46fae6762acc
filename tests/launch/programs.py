"""Programs that end by themselves, however long they wait, and programs that never would."""

import asyncio
import concurrent.futures
import ctypes
import multiprocessing
import os
import queue
import signal
import socket
import struct
import subprocess
import threading
import time

import torch
import torch.distributed as dist

from shardlab import comm

LONG = 0.5  # s; twice what the tests' launcher needs to see that no rank moves


def later(action, seconds=LONG):
    """Do something in a thread that sleeps first."""
    threading.Thread(target=lambda: (threading.Event().wait(seconds), action()), daemon=True).start()


def lock_released_by_a_thread(group):
    lock = threading.Lock()
    lock.acquire()
    later(lock.release)
    lock.acquire()


def lock_with_a_time_limit(group):
    lock = threading.Lock()
    lock.acquire()
    assert not lock.acquire(timeout=LONG)


def lock_of_processes(group):
    context = multiprocessing.get_context("fork")
    lock = context.Lock()
    lock.acquire()
    context.Process(target=lambda: (time.sleep(LONG), lock.release())).start()
    lock.acquire()


def future_of_torch(group):
    future = torch.futures.Future()
    later(lambda: future.set_result(1))
    future.wait()


def future_of_a_pool(group):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(time.sleep, LONG).result()


def queue_filled_by_a_thread(group):
    full = queue.SimpleQueue()
    later(lambda: full.put(1))
    full.get()


def event_of_a_child(group):
    context = multiprocessing.get_context("fork")
    event = context.Event()
    context.Process(target=lambda: (time.sleep(LONG), event.set())).start()
    event.wait()


def thread_joined(group):
    thread = threading.Thread(target=time.sleep, args=(LONG,))
    thread.start()
    thread.join()


def a_clock(group):
    time.sleep(LONG)


def asyncio_sleep(group):
    asyncio.run(asyncio.sleep(LONG))


def a_program(group):
    subprocess.run(["sleep", str(LONG)], check=True)


def a_pipe_from_a_child(group):
    out, into = os.pipe()
    if os.fork() == 0:
        time.sleep(LONG)
        os.write(into, b"x")
        os._exit(0)
    os.read(out, 1)


def a_socket(group):
    ours, theirs = socket.socketpair()
    later(lambda: theirs.send(b"x"))
    ours.recv(1)


def compute(group):
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        pass


def a_signal(group):
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, LONG)
    signal.pause()


def a_straggler(group):
    if group.rank() == 0:
        threading.Event().wait(LONG)
    comm.barrier(group)


def a_message_that_a_thread_sends_late(group):
    if group.rank() == 0:
        later(lambda: comm.send(torch.ones(1), group, to=1))
        comm.receive(torch.ones(1), group, source=1)
    else:
        comm.receive(torch.ones(1), group, source=0)
        comm.send(torch.ones(1), group, to=0)


def lock_and_a_heartbeat(group):
    lock = threading.Lock()
    lock.acquire()

    def beat():
        for _ in range(5):
            threading.Event().wait(LONG / 5)
        lock.release()

    threading.Thread(target=beat, daemon=True).start()
    with lock:
        pass


def a_group_that_one_rank_joins_late(group):
    if group.rank() == 0:
        time.sleep(LONG)
    comm.split(group, 2)


def a_semaphore_of_a_timer(group):
    gate = threading.Semaphore(0)
    threading.Timer(LONG, gate.release).start()
    gate.acquire()


def a_message_to_an_event_loop_in_a_thread(group):
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        time.sleep(LONG)
        theirs.send(b"x")
        os._exit(0)
    loop, came = asyncio.new_event_loop(), threading.Event()
    loop.add_reader(ours, came.set)
    threading.Thread(target=loop.run_forever, daemon=True).start()
    came.wait()


def a_call_that_an_event_loop_makes_later(group):
    loop, came = asyncio.new_event_loop(), threading.Event()
    loop.call_later(LONG, came.set)
    threading.Thread(target=loop.run_forever, daemon=True).start()
    came.wait()


def handled(sends):
    """Let a signal that a shell's commands send end a wait."""
    came = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: came.set())
    signal.signal(signal.SIGCHLD, lambda *_: came.set())
    subprocess.Popen(["sh", "-c", sends])
    came.wait()


def a_child_that_ends(group):
    handled(f"sleep {LONG}")


def a_signal_from_a_child(group):
    handled(f"sleep {LONG}; kill -USR1 $PPID; sleep 9")


def a_timer_of_the_kernel(group):
    came, libc, timer = threading.Event(), ctypes.CDLL(None), ctypes.c_void_p()
    signal.signal(signal.SIGALRM, lambda *_: came.set())
    assert libc.timer_create(time.CLOCK_MONOTONIC, None, ctypes.byref(timer)) == 0
    once = struct.pack("qqqq", 0, 0, 0, int(LONG * 1e9))
    assert libc.timer_settime(timer, 0, once, None) == 0
    came.wait()


def a_lock_that_a_lost_grandchild_holds(group):
    """Of a process whose parent has ended, this rank does not know."""
    lock = multiprocessing.get_context("fork").Semaphore(0)
    if group.rank() == 0 and os.fork() == 0:
        if os.fork() == 0:
            time.sleep(LONG)
            lock.release()
        os._exit(0)
    if group.rank() == 0:
        os.wait()
        lock.acquire()
    comm.barrier(group)


ENDING = [
    lock_released_by_a_thread,
    lock_with_a_time_limit,
    lock_of_processes,
    future_of_torch,
    future_of_a_pool,
    queue_filled_by_a_thread,
    event_of_a_child,
    thread_joined,
    a_clock,
    asyncio_sleep,
    a_program,
    a_pipe_from_a_child,
    a_socket,
    compute,
    a_signal,
    a_straggler,
    a_message_that_a_thread_sends_late,
    lock_and_a_heartbeat,
    a_group_that_one_rank_joins_late,
    a_semaphore_of_a_timer,
    a_message_to_an_event_loop_in_a_thread,
    a_call_that_an_event_loop_makes_later,
    a_child_that_ends,
    a_signal_from_a_child,
    a_timer_of_the_kernel,
    a_lock_that_a_lost_grandchild_holds,
]


def receive_without_send(group):
    if group.rank() == 1:
        comm.receive(torch.ones(1), group, source=0)


def both_send_first(group):
    comm.send(torch.ones(1 << 22), group, to=1 - group.rank())
    comm.receive(torch.ones(1 << 22), group, source=1 - group.rank())


def both_receive_first(group):
    comm.receive(torch.ones(1), group, source=1 - group.rank())


def one_skips_a_barrier(group):
    if group.rank() == 0:
        comm.barrier(group)


def one_skips_an_all_reduce(group):
    if group.rank() == 1:
        comm.all_reduce(torch.ones(1), group)


def one_skips_an_all_gather(group):
    if group.rank() == 1:
        comm.all_gather(torch.ones(1), group)


def gather_to_a_rank_that_left(group):
    if group.rank() == 1:
        dist.gather(torch.ones(1), dst=0, group=group)
        dist.gather(torch.ones(1), [torch.ones(1), torch.ones(1)], dst=1, group=group)


def unequal_numbers_of_steps(group):
    for _ in range(2 + group.rank()):
        comm.all_reduce(torch.ones(1), group)


def group_that_one_does_not_join(group):
    if group.rank() == 0:
        comm.split(group, 2)


def subgroup_called_by_one(group):
    if group.rank() == 0:
        comm.subgroup(group, [0, 1])


def new_group_called_by_one(group):
    if group.rank() == 0:
        dist.new_group([0, 1])


def groups_in_another_order(group):
    if group.rank() == 0:
        comm.receive(torch.ones(1), group, source=1)
    else:
        comm.subgroup(group, [0, 1])


def unsent_start(group):
    for wait in comm.start_messages([], [(torch.ones(1), 1 - group.rank())], group):
        wait()


def async_all_reduce_of_one(group):
    if group.rank() == 0:
        comm.start_all_reduce(torch.ones(1), group)()


def barrier_in_the_store(group):
    if group.rank() == 0:
        dist.distributed_c10d._get_default_store().wait(["never"])


def lock_taken_twice(group):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def lock_and_receive(group):
    if group.rank() == 0:
        lock_taken_twice(group)
    comm.barrier(group)


def all_to_all_of_one(group):
    if group.rank() == 0:
        comm.all_to_all(torch.ones(2), group)


def hook_of_one(group):
    x = torch.ones(1, requires_grad=True)
    if group.rank() == 0:
        x.register_hook(lambda g: comm.all_reduce(g, group))
    (x * 2).backward()
    if group.rank() == 0:
        comm.barrier(group)


def object_gathered_by_one(group):
    if group.rank() == 0:
        dist.all_gather_object([None, None], 1, group=group)


def idle_event_loop_in_a_thread(group):
    threading.Thread(target=asyncio.new_event_loop().run_forever, daemon=True).start()
    one_skips_a_barrier(group)


def an_event_that_nobody_sets(group):
    """`asyncio.run` sets a handler for Ctrl-C, which ranks do not get."""
    asyncio.run(asyncio.Event().wait())


def handler_that_cannot_run(group):
    """Python's handlers wait until torch's call has ended."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    one_skips_a_barrier(group)


STUCK = [
    receive_without_send,
    both_send_first,
    both_receive_first,
    one_skips_a_barrier,
    one_skips_an_all_reduce,
    one_skips_an_all_gather,
    unequal_numbers_of_steps,
    group_that_one_does_not_join,
    subgroup_called_by_one,
    new_group_called_by_one,
    groups_in_another_order,
    unsent_start,
    async_all_reduce_of_one,
    barrier_in_the_store,
    lock_taken_twice,
    lock_and_receive,
    all_to_all_of_one,
    hook_of_one,
    object_gathered_by_one,
    gather_to_a_rank_that_left,
    idle_event_loop_in_a_thread,
    an_event_that_nobody_sets,
    handler_that_cannot_run,
]
