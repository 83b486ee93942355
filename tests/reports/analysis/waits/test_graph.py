"""Wait graphs: from notes of the system, from stacks, and with unknown owners."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.reports.analysis.waits.frames import WaitKind, wait_of
from machtrace.reports.analysis.waits.graph import EdgeSource, strong_components, wait_graph
from machtrace.reports.analysis.waits.threads import wait_note
from tests.support.reports.models import made_report, made_thread, made_tree

DISPATCH_SYNC = [
    "system:__ulock_wait",
    "system:_dlock_wait",
    "system:_dispatch_thread_event_wait_slow",
    "system:__DISPATCH_WAIT_FOR_QUEUE__",
    "system:_dispatch_sync_f_slow",
]
MUTEX = ["system:__psynch_mutexwait", "system:_pthread_mutex_firstfit_lock_slow"]


@pytest.mark.parametrize(
    ("text", "process", "pid", "thread"),
    [
        ("(blocked by turnstile waiting for Demo [42] thread 0x1aeb)", "Demo", 42, 0x1AEB),
        ("1-60 (blocked by turnstile waiting for My App [42] thread 0x5)", "My App", 42, 5),
        ("(blocked by turnstile waiting for Demo [42] [unique pid 9] thread 0x5)", "Demo", 42, 5),
        ("(blocked by turnstile waiting for thread 0xce8)", None, None, 0xCE8),
        ("(blocked by turnstile waiting for tccd after 2 hops)", "tccd", None, None),
        ("(suspended, blocked by turnstile waiting for Demo [858])", "Demo", 858, None),
        ("(blocked by mutex 0x600 owned by Demo [42] thread 0x5)", "Demo", 42, 5),
    ],
)
def test_notes_say_who_is_waited_for(text, process, pid, thread):
    """As far as they do."""
    note = wait_note(text)
    assert note is not None
    assert (process, pid, thread) == (note.process, note.pid, note.thread)
    assert note.names_owner


def test_notes_state_more_than_frames():
    """They state the thread itself, the main thread, hops, and a deadlock that the system found."""
    own = wait_note("(blocked by turnstile waiting for this thread - part of a deadlock)")
    assert own.is_own_thread
    assert own.is_deadlock
    assert wait_note("(blocked by turnstile waiting for Demo main thread)").is_main_thread
    assert wait_note("(blocked by turnstile waiting for tccd after 2 hops)").hops == 2
    assert not wait_note("(blocked by turnstile)").names_owner
    assert wait_note("(running)") is None


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["__ulock_wait", "_dlock_wait", "_dispatch_sync_f_slow", "run"], WaitKind.DISPATCH_SYNC),
        (["__psynch_mutexwait", "_pthread_mutex_firstfit_lock_slow", "run"], WaitKind.MUTEX),
        (
            [
                *("futex_wait", "__GI___lll_lock_wait", "lll_mutex_lock_optimized"),
                *("___pthread_mutex_lock", "run"),
            ],
            WaitKind.MUTEX,
        ),
        (
            [
                *("__futex_abstimed_wait_common64", "__futex_abstimed_wait_common"),
                *("__pthread_clockjoin_ex", "main"),
            ],
            WaitKind.JOIN,
        ),
        (["__GI___clock_nanosleep", "__GI___nanosleep", "usleep", "run"], WaitKind.SLEEP),
        (["psynch_mtxcontinue", "__psynch_mutexwait", "std::mutex::lock()"], WaitKind.MUTEX),
        (["__ulock_wait2", "_os_unfair_lock_lock_slow", "run"], WaitKind.UNFAIR_LOCK),
        (["semaphore_wait_trap", "_dispatch_sema4_wait", "run"], WaitKind.SEMAPHORE),
        (
            ["semaphore_wait_trap", "_dispatch_sema4_wait", "_dispatch_group_wait_slow"],
            WaitKind.DISPATCH_GROUP,
        ),
        (["__psynch_cvwait", "_pthread_cond_wait", "run"], WaitKind.CONDITION),
        (["__ulock_wait", "_pthread_join", "run"], WaitKind.JOIN),
        (
            ["mach_msg2_trap", "mach_msg", "__CFRunLoopServiceMachPort", "__CFRunLoopRun"],
            WaitKind.RUN_LOOP,
        ),
        (
            [
                "mach_msg2_trap",
                "mach_msg",
                "_dispatch_mach_send_and_wait_for_reply",
                "xpc_connection_send_message_with_reply_sync",
                "run",
            ],
            WaitKind.REPLY,
        ),
        (["__workq_kernreturn", "_pthread_wqthread", "start_wqthread"], WaitKind.WORK),
        (["start_wqthread"], WaitKind.WORK),
        (["___workq_kernreturn", "_start_wqthread"], WaitKind.WORK),
        (["mach_msg_trap", "run"], WaitKind.MESSAGE),
    ],
)
def test_the_wait_of_a_stack(names, kind):
    """The most specific function at the inner end decides."""
    wait = wait_of(names)
    assert wait is not None
    assert kind is wait.kind


@pytest.mark.parametrize(
    "names",
    [
        ["run", "main"],
        ["work", "_dispatch_client_callout", "_dispatch_sync_f_slow"],
        ["pthread_mutex_lock", "run"],  # which takes a lock that is free, too
        ["objc_msgSend", "__CFRunLoopServiceMachPort"],
        [],
    ],
)
def test_stacks_that_do_not_wait(names):
    """A function that may wait is not enough: the stack has to end where threads wait."""
    assert wait_of(names) is None


def test_a_block_that_waits_is_not_its_queue():
    """Who had the block run does not wait, as far as this thread goes."""
    names = ["__psynch_mutexwait", "_dispatch_client_callout", "_dispatch_sync_f_slow"]
    assert WaitKind.MUTEX is wait_of(names).kind


def test_notes_make_a_deadlock():
    """Two threads wait for one another, as spindump notes in their trees."""
    first = made_tree(
        [(None, 60, "main"), (0, 60, "system:__psynch_mutexwait")],
        thread=0x1A,
        queue="com.apple.main-thread",
        notes={1: "(blocked by turnstile waiting for Demo [42] thread 0x1b)  1-60"},
    )
    second = made_tree(
        [(None, 60, "loop"), (0, 58, "system:__psynch_mutexwait")],
        thread=0x1B,
        notes={1: "(blocked by turnstile waiting for Demo [42] thread 0x1a)"},
    )
    graph = wait_graph(made_report(trees=[first, second]))
    assert [(e.waiter, e.owner, e.samples) for e in graph.edges] == [(0, 1, 60), (1, 0, 58)]
    (deadlock,) = graph.deadlocks
    assert deadlock.threads == (0, 1)
    assert deadlock.is_certain


def test_a_thread_that_waits_for_itself_is_a_deadlock():
    """The system's own verdict is preserved."""
    tree = made_tree(
        [(None, 9, "main"), (0, 9, "system:__psynch_mutexwait")],
        thread=1,
        notes={1: "(blocked by turnstile waiting for this thread - part of a deadlock)"},
    )
    (deadlock,) = wait_graph(made_report(trees=[tree])).deadlocks
    assert deadlock.threads == (0,)
    assert deadlock.is_noted


def test_a_process_that_is_waited_for_is_no_thread():
    """The edge names it, and leads nowhere."""
    tree = made_tree(
        [(None, 9, "main"), (0, 9, "system:mach_msg2_trap")],
        thread=1,
        notes={1: "(blocked by turnstile waiting for tccd [77] after 2 hops)"},
    )
    (edge,) = wait_graph(made_report(trees=[tree])).edges
    assert edge.owner is None
    assert edge.owner_label == "tccd [77]"


def test_who_holds_a_mutex_is_not_guessed():
    """Stacks do not reveal it."""
    report = made_report(made_thread(0, [*MUTEX, "main"]), made_thread(1, ["work", "loop"]))
    graph = wait_graph(report)
    assert graph.edges == ()
    assert graph.ownerless == (0,)
    assert graph.deadlocks == ()


def test_the_only_queue_is_marked_as_a_guess():
    """Two threads in dispatch_sync that each serve a queue may be a deadlock."""
    report = made_report(
        made_thread(0, [*DISPATCH_SYNC, "main"], queue="com.apple.main-thread"),
        made_thread(1, [*DISPATCH_SYNC, "work"], queue="org.example.work"),
        made_thread(2, ["idle"], queue="com.apple.root.default-qos"),
    )
    graph = wait_graph(report)
    assert {EdgeSource.ONLY_QUEUE} == {edge.source for edge in graph.edges}
    (deadlock,) = graph.deadlocks
    assert deadlock.threads == (0, 1)
    assert not deadlock.is_certain


def test_one_of_several_queues_is_not_chosen():
    """The owner is unknown then."""
    report = made_report(
        made_thread(0, [*DISPATCH_SYNC, "main"], queue="com.apple.main-thread"),
        made_thread(1, ["work"], queue="org.example.work"),
        made_thread(2, ["work"], queue="org.example.more"),
    )
    graph = wait_graph(report)
    assert graph.edges == ()
    assert graph.ownerless == (0,)


def test_a_caller_that_is_named_after_the_main_thread():
    """It is a guess, too."""
    report = made_report(
        made_thread(0, ["main"], queue="com.apple.main-thread"),
        made_thread(1, [*DISPATCH_SYNC, "system:PerformBlockSynchronouslyOnMainThread"]),
        made_thread(2, ["work"], queue="org.example.work"),
    )
    (edge,) = wait_graph(report).edges
    assert (edge.waiter, edge.owner, edge.source) == (1, 0, EdgeSource.CALLER)


def test_a_queue_that_its_own_thread_waits_for():
    """Libdispatch ends such a process with a message."""
    message = (
        "BUG IN CLIENT OF LIBDISPATCH: dispatch_sync called on queue already owned by current "
    )
    message += "thread"
    report = made_report(made_thread(0, [*DISPATCH_SYNC, "main"], crashed=True))
    report = replace(report, application_information=(("libdispatch.dylib", (message,)),))
    (edge,) = wait_graph(report).edges
    assert (edge.waiter, edge.owner, edge.source) == (0, 0, EdgeSource.MESSAGE)
    assert wait_graph(report).deadlocks[0].is_certain


def test_threads_that_wait_for_the_same_event():
    """Stackshots give the kernel's event; who would end the wait they do not."""
    report = made_report(
        made_thread(0, ["main"], details={"waitEvent": [1, 0xFFFF_FE00_1234]}),
        made_thread(1, ["loop"], details={"waitEvent": [1, 0xFFFF_FE00_1234]}),
        made_thread(2, ["work"], details={"waitEvent": [1, 0xFFFF_FE00_5678]}),
    )
    (shared,) = wait_graph(report).shared_events
    assert shared == ((1, 0xFFFF_FE00_1234), (0, 1))


@given(st.lists(st.lists(st.integers(0, 7), max_size=4), min_size=8, max_size=8))
def test_components_equal_mutual_reachability(edges):
    """The oracle computes the nodes reachable from each."""
    reach = []
    for start in range(8):
        seen, waiting = set(), [start]
        while waiting:
            for other in edges[waiting.pop()]:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        reach.append(seen)
    expected = {
        tuple(o for o in range(8) if o == one or (o in reach[one] and one in reach[o]))
        for one in range(8)
    }
    assert {tuple(component) for component in strong_components(edges)} == expected


def test_a_long_chain_takes_no_recursion():
    """Ten thousand threads wait in a row, and the last waits for the first."""
    components = strong_components([[at + 1] for at in range(9_999)] + [[0]])
    assert [list(range(10_000))] == components
