"""Scenarios of who requests data, each with its truth: chains are written outermost first."""

from machtrace.audit.trail.attribution import AttributionFlag as Flag
from machtrace.audit.trail.calls import CallFlag
from machtrace.audit.trail.owners import Reason
from machtrace.audit.trail.stacks import OUTER_MISSING
from tests.audit.trail.program import Expected, Step

VENDOR = "-[UIDevice identifierForVendor]"
PASTE = "-[UIPasteboard string]"
ADVERTISING = "-[ASIdentifierManager advertisingIdentifier]"
STAT = "stat"
LOOKED_UP = "gethostuuid"
BOOT = "mach_absolute_time"
SCENARIOS = {}
UNDECIDABLE = {}
"""Scenarios that no stack can answer, with the reason."""
NEED_DEBUG_INFORMATION = ("inlined_code_of_a_library", "inlined_wrapper")


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def undecidable(asker, owner=None):
    def register(function):
        UNDECIDABLE[function.__name__] = function, asker, owner or asker
        return function

    return register


def steps(program, *names):
    """Return steps: ``Library`` for some function of it, ``Image:name`` for a system function."""
    chain = []
    for name in names:
        if isinstance(name, Step):
            chain.append(name)
        elif ":" in name:
            chain.append(Step(program.function(*name.split(":", 1))))
        else:
            chain.append(Step(program.any_function(name)))
    return chain


def main_thread(program):
    """Return a run loop that handles an event, from ``main`` on."""
    return steps(
        program,
        "dyld:start",
        "App:main",
        "UIKitCore:UIApplicationMain",
        "CoreFoundation:CFRunLoopRunSpecific",
        "CoreFoundation:__CFRUNLOOP_IS_CALLING_OUT_TO_A_SOURCE0_PERFORM_FUNCTION__",
        "UIKitCore:-[UIApplication sendEvent:]",
        *program.random.choices(["UIKitCore:-[UIControl sendAction:]", "UIKitCore:helper"], k=2),
    )


def queue(program):
    return steps(
        program,
        "libsystem_pthread:start_wqthread",
        "libdispatch:_dispatch_worker_thread2",
        "libdispatch:_dispatch_client_callout",
        "libdispatch:_dispatch_call_block_and_release",
    )


def task(program):
    return steps(
        program,
        "libsystem_pthread:start_wqthread",
        "libswift_Concurrency:swift_job_runImpl",
        "libswift_Concurrency:completeTaskWithClosure",
    )


def outside(program):
    """Return some outermost part of a stack, that ends in the app's own code."""
    base = program.random.choice([main_thread, queue, task])(program)
    return base + steps(program, *["App"] * program.random.randint(1, 6))


def simple(asker, owner=None, flags=0):
    return Expected(asker, owner or asker, flags)


@scenario
def framework_calls(p):
    p.record("", outside(p) + steps(p, "Gamma", "Gamma"), VENDOR, simple("Gamma"))


@scenario
def first_static_library_calls(p):
    p.record("", outside(p) + steps(p, "Alpha", "Alpha"), VENDOR, simple("Alpha"))


@scenario
def second_static_library_calls(p):
    p.record("", outside(p) + steps(p, "Beta"), VENDOR, simple("Beta"))


@scenario
def stripped_functions_of_an_archive(p):
    functions = p.known.setdefault(("archive", ""), None) or p.archive("Alpha", 8)
    p.known["archive", ""] = functions
    chain = [*outside(p), Step(p.random.choice(functions))]
    p.record("", chain, VENDOR, simple("Alpha"))


@scenario
def app_calls(p):
    p.record("", outside(p), VENDOR, simple("App"))


@scenario
def own_framework_calls(p):
    p.record("", outside(p) + steps(p, "AppCore"), VENDOR, simple("AppCore"))


@scenario
def library_runs_the_apps_callback(p):
    p.record("", outside(p) + steps(p, "Gamma", "Gamma", "App"), VENDOR, simple("App"))


@scenario
def static_library_runs_the_apps_callback(p):
    p.record("", outside(p) + steps(p, "Alpha", "App"), VENDOR, simple("App"))


@scenario
def block_of_a_library_on_a_queue(p):
    p.record("", queue(p) + steps(p, "Gamma"), VENDOR, simple("Gamma"))


@scenario
def block_of_a_static_library_on_a_queue(p):
    p.record("", queue(p) + steps(p, "Beta", "Beta"), VENDOR, simple("Beta"))


@scenario
def swift_task_of_a_library(p):
    p.record("", task(p) + steps(p, "Delta", "Delta"), STAT, simple("Delta"))


@scenario
def initialiser_of_a_library(p):
    chain = steps(p, "dyld:start", "dyld:runInitializers", "Gamma")
    p.record("", chain, VENDOR, simple("Gamma"))


@scenario
def synchronous_block_of_a_library(p):
    chain = outside(p) + steps(
        p, "Gamma", "libdispatch:_dispatch_lane_barrier_sync", "libdispatch:helper", "Gamma"
    )
    p.record("", chain, VENDOR, simple("Gamma"))


@scenario
def deep_recursion(p):
    depth = p.random.randint(50, 300)
    function = p.any_function("Gamma")
    p.record("", outside(p) + [Step(function)] * depth, STAT, simple("Gamma"))


def jump(p, library, how="jump", selector=""):
    """Return a function of its own for a jump: its instructions have no other way out."""
    name = f"jumper{p.random.randrange(6)} {how} {selector}"
    return Step(p.function(library, name), how, selector)


def jump_to(p, library, target):
    return Step(p.function(library, f"to {target}'s target"), "jump")


@scenario
def tail_call_of_a_framework(p):
    chain = [*outside(p), jump(p, "Gamma")]
    p.record("", chain, VENDOR, simple("Gamma", flags=Flag.TAIL_CALL))


@scenario
def tail_call_of_a_static_library(p):
    chain = [*outside(p), jump(p, "Alpha")]
    p.record("", chain, VENDOR, simple("Alpha", flags=Flag.TAIL_CALL))


@scenario
def tail_call_of_a_library_called_by_itself(p):
    chain = outside(p) + steps(p, "Beta") + [jump(p, "Beta")]
    p.record("", chain, VENDOR, simple("Beta", flags=Flag.TAIL_CALL))


@scenario
def tail_call_of_the_app_called_by_a_library(p):
    chain = outside(p) + steps(p, "Gamma") + [jump(p, "App")]
    p.record("", chain, VENDOR, simple("App", flags=Flag.TAIL_CALL))


@scenario
def tail_call_through_two_libraries(p):
    outer = Step(p.function("Alpha", f"outer{p.random.randrange(4)}"), "jump")
    inner = p.function("Beta", f"inner to {outer.function.offset}")
    chain = [*outside(p), outer, Step(inner, "jump")]
    p.record("", chain, VENDOR, simple("Beta", "Alpha", Flag.TAIL_CALL))


@scenario
def tail_call_between_libraries(p):
    chain = outside(p) + steps(p, "Delta") + [jump(p, "Gamma")]
    p.record("", chain, VENDOR, simple("Gamma", "Delta", Flag.TAIL_CALL))


@scenario
def tail_call_by_several_paths_in_one_library(p):
    start = p.function("Gamma", "several")
    middle = p.function("Gamma", f"several{p.random.randrange(3)}")
    chain = [*outside(p), Step(start, "jump"), Step(middle, "jump")]
    p.record("", chain, ADVERTISING, simple("Gamma", flags=Flag.TAIL_CALL))


@scenario
def tail_call_of_a_method_by_message(p):
    selector = "deviceIdentifier"
    method = p.function("Gamma", "-[GMDevice deviceIdentifier]")
    p.methods[selector] = (method,)
    caller = p.function("App", f"caller{p.random.randrange(9)}")
    chain = [*outside(p), Step(caller, "message", selector), Step(method, "jump")]
    p.record("", chain, VENDOR, simple("Gamma", flags=Flag.TAIL_CALL))


@scenario
def message_whose_class_is_unknown(p):
    caller = p.function("Beta", f"sender{p.random.randrange(9)}")
    chain = [*outside(p), Step(caller, "message", "identifierForVendor")]
    p.record("", chain, VENDOR, simple("Beta"))


@scenario
def tail_call_of_a_wrapper(p):
    chain = outside(p) + steps(p, "Delta") + [jump(p, "Net")]
    p.record("", chain, STAT, simple("Net", "Delta", Flag.TAIL_CALL | Flag.PASSED_THROUGH))


@scenario
def tail_call_of_a_wrapper_for_the_app(p):
    chain = [*outside(p), jump(p, "Util")]
    p.record("", chain, STAT, simple("Util", "App", Flag.TAIL_CALL | Flag.PASSED_THROUGH))


@scenario
def system_function_ends_with_a_jump(p):
    system = Step(p.function("UIKitCore", "-[UITextField thing]"), "jump")
    chain = [*outside(p), system]
    p.jumps.pop(system.function, None)
    p.record("", chain, PASTE, simple("App", flags=Flag.THROUGH_SYSTEM))
    p.jumps.pop(system.function, None)  # the system's code is not scanned


@scenario
def perform_selector(p):
    chain = outside(p) + steps(p, "Gamma", "Foundation:-[NSObject performSelector:]")
    p.record("", chain, VENDOR, simple("Gamma", flags=Flag.REFLECTION))


@scenario
def value_for_key(p):
    chain = outside(p) + steps(
        p, "Foundation:-[NSObject(NSKeyValueCoding) valueForKey:]",
        "Foundation:_NSGetUsingKeyValueGetter",
    )  # fmt: skip
    p.record("", chain, VENDOR, simple("App", flags=Flag.REFLECTION))


@scenario
def invocation(p):
    chain = outside(p) + steps(
        p, "Alpha", "CoreFoundation:-[NSInvocation invoke]", "CoreFoundation:__invoking___"
    )
    p.record("", chain, VENDOR, simple("Alpha", flags=Flag.REFLECTION))


@scenario
def forwarded_message(p):
    chain = outside(p) + steps(
        p, "Beta", "CoreFoundation:_CF_forwarding_prep_0", "CoreFoundation:___forwarding___"
    )
    p.record("", chain, VENDOR, simple("Beta", flags=Flag.REFLECTION))


@scenario
def pointer_of_dlsym(p):
    chain = [*outside(p), Step(p.any_function("Beta"), "pointer")]
    p.record("", chain, LOOKED_UP, simple("Beta"))


@scenario
def tail_call_between_recorded_frames(p):
    chain = [*outside(p), jump_to(p, "Gamma", "Delta"), *steps(p, "Delta:target")]
    p.record("", chain, VENDOR, simple("Delta", "Gamma"))


@scenario
def tail_call_of_a_static_library_between_recorded_frames(p):
    chain = [*outside(p), jump_to(p, "Alpha", "Beta"), *steps(p, "Beta:target", "Beta")]
    p.record("", chain, VENDOR, simple("Beta", "Alpha"))


@scenario
def tail_call_of_the_app_between_recorded_frames(p):
    chain = outside(p) + steps(p, "Gamma") + [jump_to(p, "App", "Delta")] + steps(p, "Delta:target")
    p.record("", chain, VENDOR, simple("Delta"))


@scenario
def tail_call_into_a_forwarder(p):
    system = "Foundation:-[NSObject performSelector:]"
    wrapper = Step(p.function("Alpha", f"performs{p.random.randrange(4)}"), "jump")
    chain = [*outside(p), wrapper, *steps(p, system)]
    p.record("", chain, VENDOR, simple("Alpha", flags=Flag.REFLECTION | Flag.TAIL_CALL))


@scenario
def tail_call_into_a_system_function(p):
    wrapper = Step(p.function("Beta", f"pastes{p.random.randrange(4)}"), "jump")
    chain = [*outside(p), wrapper, *steps(p, "UIKitCore:-[UITextField paste:]")]
    p.record("", chain, PASTE, simple("Beta", flags=Flag.THROUGH_SYSTEM | Flag.TAIL_CALL))


@scenario
def block_of_a_library_that_is_called_by_a_pointer(p):
    chain = [*outside(p), Step(p.any_function("App"), "pointer"), *steps(p, "Gamma")]
    p.record("", chain, VENDOR, simple("Gamma"))


@scenario
def system_pastes_for_itself(p):
    chain = main_thread(p) + steps(p, "UIKitCore:-[UITextField paste:]", "UIKitCore:paste helper")
    p.record("", chain, PASTE, simple("UIKitCore"))


@scenario
def system_pastes_below_the_apps_event_handler(p):
    chain = main_thread(p) + steps(
        p, "App", "UIKitCore:-[UIApplication sendEvent:]", "UIKitCore:-[UITextField paste:]"
    )
    p.record("", chain, PASTE, simple("UIKitCore"))


@scenario
def thread_of_the_system(p):
    chain = queue(p) + steps(p, "Foundation:-[NSURLSession work]", "CoreFoundation:stat helper")
    p.record("", chain, STAT, simple("CoreFoundation"))


@scenario
def observer_of_the_system(p):
    chain = outside(p) + steps(
        p, "CoreFoundation:_CFXNotificationPost", "UIKitCore:observer", "UIKitCore:helper"
    )
    p.record("", chain, PASTE, simple("UIKitCore"))


@scenario
def app_pastes_by_a_system_function(p):
    chain = outside(p) + steps(p, "UIKitCore:-[UITextField paste:]")
    p.record("", chain, PASTE, simple("App", flags=Flag.THROUGH_SYSTEM))


@scenario
def nested_call_of_a_library(p):
    chain = outside(p) + steps(p, "Delta", "Foundation:-[NSFileManager attributes]")
    expected = simple("Delta", flags=Flag.THROUGH_SYSTEM)
    p.record("", chain, STAT, expected, flags=CallFlag.NESTED)


def replacement(p, library, watch):
    function = p.function(library, f"replacement of {watch}")
    p.replacements.setdefault(watch, set()).add(function)
    return Step(function, "pointer")


@scenario
def library_calls_what_another_replaced(p):
    chain = outside(p) + steps(p, "Alpha") + [replacement(p, "Gamma", VENDOR)]
    p.record("", chain, VENDOR, simple("Alpha", flags=Flag.SWIZZLED))


@scenario
def app_calls_what_a_static_library_replaced(p):
    chain = [*outside(p), replacement(p, "Beta", VENDOR)]
    p.record("", chain, VENDOR, simple("App", flags=Flag.SWIZZLED))


@scenario
def library_calls_what_two_replaced(p):
    replaced = [replacement(p, "Gamma", VENDOR), replacement(p, "Beta", VENDOR)]
    chain = outside(p) + steps(p, "Delta") + replaced
    p.record("", chain, VENDOR, simple("Delta", flags=Flag.SWIZZLED))


@scenario
def replacement_calls_another_watched_function(p):
    chain = outside(p) + steps(p, "Alpha") + [replacement(p, "Gamma", VENDOR)]
    p.record("", chain, ADVERTISING, simple("Gamma", "Alpha"))


@scenario
def tail_call_of_what_another_replaced(p):
    inner = replacement(p, "Gamma", VENDOR)
    outer = Step(p.function("Alpha", "to replaced"), "message-jump", "identifierForVendor")
    chain = [*outside(p), outer, inner]
    p.record("", chain, VENDOR, simple("Alpha", flags=Flag.SWIZZLED | Flag.TAIL_CALL))


@scenario
def inlined_code_of_a_library(p):
    inlined = p.function("Alpha", f"inlined {p.random.randrange(4)}", within="App")
    chain = [*outside(p), Step(inlined)]
    p.record("", chain, VENDOR, simple("Alpha", flags=Flag.INLINED))


@scenario
def inlined_wrapper(p):
    inlined = p.function("Util", f"inlined {p.random.randrange(4)}", within="Beta")
    chain = [*main_thread(p), Step(inlined)]
    p.record("", chain, VENDOR, simple("Util", "Beta", Flag.INLINED | Flag.PASSED_THROUGH))


@scenario
def wrapper_for_a_library(p):
    chain = outside(p) + steps(p, "Gamma", "Net", "Net")
    p.record("", chain, STAT, simple("Net", "Gamma", Flag.PASSED_THROUGH))


@scenario
def wrapper_for_the_app(p):
    p.record("", outside(p) + steps(p, "Net"), STAT, simple("Net", "App", Flag.PASSED_THROUGH))


@scenario
def wrapper_in_a_wrapper(p):
    chain = outside(p) + steps(p, "Alpha", "Store", "Net", "Util")
    p.record("", chain, STAT, simple("Util", "Alpha", Flag.PASSED_THROUGH))


@scenario
def wrapper_through_the_system(p):
    chain = outside(p) + steps(p, "Delta", "Foundation:-[NSArray enumerate]", "Store")
    p.record("", chain, STAT, simple("Store", "Delta", Flag.PASSED_THROUGH))


@scenario
def wrapper_on_its_own_queue(p):
    p.record("", queue(p) + steps(p, "Net"), STAT, simple("Net"))


@scenario
def wrapper_runs_a_librarys_callback(p):
    chain = outside(p) + steps(p, "Net", "Gamma")
    p.record("", chain, STAT, simple("Gamma"))


@scenario
def library_calls_a_library(p):
    chain = outside(p) + steps(p, "Gamma", "Delta", "Delta")
    p.record("", chain, VENDOR, simple("Delta", "Gamma"))


@scenario
def three_libraries(p):
    chain = outside(p) + steps(p, "Alpha", "Gamma", "Delta")
    p.record("", chain, VENDOR, simple("Delta", "Alpha"))


@scenario
def library_observes_what_another_posts(p):
    post = ["Foundation:-[NSNotificationCenter postNotificationName:object:]"]
    chain = outside(p) + steps(p, "Gamma", *post, "CoreFoundation:_CFXNotificationPost", "Delta")
    p.record("", chain, VENDOR, simple("Delta"))


@scenario
def app_between_two_libraries(p):
    chain = outside(p) + steps(p, "Gamma", "App", "Delta")
    p.record("", chain, VENDOR, simple("Delta"))


@scenario
def executor_runs_a_librarys_callback(p):
    chain = outside(p) + steps(p, "Gamma", "Executor", "Executor", "Delta")
    p.record("", chain, VENDOR, simple("Delta"))


@scenario
def executor_runs_the_apps_callback(p):
    chain = queue(p) + steps(p, "Executor", "App")
    p.record("", chain, VENDOR, simple("App"))


@scenario
def executor_calls_for_itself(p):
    p.record("", outside(p) + steps(p, "Executor"), STAT, simple("Executor"))


@undecidable(Reason.SEVERAL)
def tail_calls_of_two_libraries(p):
    start = p.function("Util", "two ways")
    library = p.random.choice(["Alpha", "Beta"])
    chain = [*outside(p), Step(start, "jump"), Step(p.function(library, "way"), "jump")]
    p.record("", chain, "two", Expected(None, None))


@undecidable(Reason.SEVERAL)
def own_method_of_the_same_name_may_jump(p):
    method = p.function("Alpha", "-[AlphaDevice model]")
    p.methods["model"] = (method,)
    p.jumps[method] = p.jumps.get(method, [])
    caller = p.function("App", "calls model")
    chain = [*outside(p), Step(caller, "message", "model"), Step(method, "jump")]
    p.record("", chain, "-[UIDevice model]", Expected(None, None))


@undecidable(Reason.SEVERAL)
def pointer_leads_to_the_function_or_to_a_jump(p):
    jumper = Step(p.function("Gamma", "block that jumps"), "jump")
    chain = [*outside(p), Step(p.function("Beta", "calls a block"), "pointer"), jumper]
    p.record("", chain, BOOT, Expected(None, None))


@undecidable(Reason.SEVERAL)
def pointer_that_was_looked_up_leads_to_the_function_or_to_a_jump(p):
    chain = [*outside(p), Step(p.function("Beta", "calls what it looked up"), "pointer")]
    p.record("", chain, BOOT, Expected(None, None))


@undecidable(Reason.NONE, Reason.UNKNOWN_JUMP)
def function_jumps_by_a_register_between_recorded_frames(p):
    hidden = Step(p.function("Gamma", "jumps by a register to others"), "pointer-jump")
    p.record("", [*outside(p), hidden, *steps(p, "Delta")], VENDOR, Expected("Delta", None))


@undecidable(Reason.UNKNOWN_JUMP)
def function_jumps_by_a_register(p):
    hidden = Step(p.function("Gamma", "jumps by a register"), "pointer-jump")
    p.record("", [*outside(p), hidden], VENDOR, Expected(None, None))


@undecidable(Reason.NONE, Reason.OUTER_MISSING)
def outer_frames_are_missing(p):
    chain = steps(p, "Gamma", "Gamma")
    if p.random.random() < 0.5:
        p.record("", chain, VENDOR, Expected("Gamma", None), mark=OUTER_MISSING)
    else:
        flags = CallFlag.OUTER_MISSING
        p.record("", chain, STAT, Expected("Gamma", None), flags=flags)


@undecidable(Reason.INNER_MISSING)
def inner_frames_are_missing(p):
    p.record("", outside(p), VENDOR, Expected(None, None), flags=CallFlag.INNER_MISSING)


@undecidable(Reason.UNNAMED_SYSTEM)
def system_functions_without_names(p):
    chain = outside(p) + steps(p, "Gamma", "Unnamed", "Unnamed")
    p.record("", chain, VENDOR, Expected(None, None))


@undecidable(Reason.SCHEDULED)
def delayed_perform(p):
    chain = main_thread(p)[:5] + steps(p, "Foundation:__NSFireDelayedPerform")
    p.record("", chain, VENDOR, Expected(None, None))


@undecidable(Reason.UNKNOWN_CODE)
def generated_code(p):
    p.record("", [*outside(p), Step(None, "pointer")], VENDOR, Expected(None, None))


@undecidable(Reason.UNKNOWN_CODE)
def function_of_no_known_library(p):
    nowhere = p.function("Nowhere", f"nowhere{p.random.randrange(3)}")
    p.record("", [*outside(p), Step(nowhere)], VENDOR, Expected(None, None))


@undecidable(Reason.NO_STACK)
def no_stack(p):
    p.record("", [], VENDOR, Expected(None, None))
