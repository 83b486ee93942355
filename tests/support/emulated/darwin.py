"""As much of Darwin as the agent and its programs need: libSystem, dyld and the kernel in Python.

Sources: xnu's ``bsd/kern/syscalls.master`` and ``osfmk/mach``, libpthread, and dyld's
``RuntimeState::notifyLoad`` for the order in which images are reported.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path
from struct import pack

from machtrace.model.arch import Arch
from tests.support.emulated.darwin_threads import EmulatedThreads
from tests.support.emulated.library import packed
from tests.support.emulated.process import (
    EmulatedProcess,
    LoadedImage,
    Steps,
    Thread,
    Waiting,
)

_MAP_SHARED, _MAP_ANON = 1, 0x1000
_FAILED = (1 << 64) - 1
_FLAGS = {0x200: os.O_CREAT, 0x400: os.O_TRUNC, 0x800: os.O_EXCL, 0x1000000: os.O_CLOEXEC}
_ERRNO = {11: 35}
"""Numbers of errors that differ from Linux's."""
_FIRST_KEY = 260
_TASK = 0x203
_ETIMEDOUT = 60
_NOLOAD = 0x10
_TASK_VM_INFO, _FOOTPRINT = 22, 144
"""A flavour of task_info, and the offset of phys_footprint in it: mach/task_info.h."""
_RTLD_DEFAULT = _FAILED - 1
_FORMAT = re.compile(r"%([-0]*)(\d*)(?:\.(\d+))?(?:ll|z|l)?([sdux])")
_GENERAL = 1 << 32


class EmulatedDarwin:
    """The system of one process."""

    def __init__(self, process: EmulatedProcess) -> None:
        """Provide its functions to the process."""
        self.process = process
        self.memory = process.memory
        self.notes: dict[str, int] = {}
        """Numbers that the program noted."""
        self.on_add: list[int] = []
        self.on_remove: list[int] = []
        self.files: dict[str, dict[str, object]] = {}
        """How an image is loaded, by its path, if other than by default."""
        self.environment: dict[str, str] = {}
        self.protections: list[tuple[int, int, int]] = []
        """All changes of pages' protection."""
        self.main: Thread | None = None
        self.refuses: tuple[str, ...] = ()
        """Ends of the paths of files that cannot be opened."""
        self._errno = process.allocate(64)
        self._strings: dict[str, int] = {}
        self._sizes: dict[int, int] = {}
        self._maps: dict[int, mmap.mmap] = {}
        self._mutexes: dict[int, int] = {}
        self._once: set[int] = set()
        self._keys: dict[int, int] = {}
        self._sleepers: dict[int, list[list[bool]]] = {}
        self._handles: dict[int, LoadedImage] = {}
        process.variables |= {
            "_mach_task_self_": _TASK.to_bytes(8, "little"),
            "___stack_chk_guard": packed(0x5EED_CA9A_7E11_0000),
            "___stderrp": packed(0),
        }
        process.functions |= {
            "_" + name.removeprefix("do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }
        self.threads = EmulatedThreads(process)
        process.functions["___error"] = lambda _: self._errno
        process.functions["___bzero"] = self.do_bzero
        process.functions["___memcpy_chk"] = self.do_memcpy
        process.functions["_memmove"] = self.do_memcpy
        for name in ("strcpy", "strcat", "strncpy", "memset"):
            process.functions[f"___{name}_chk"] = process.functions[f"_{name}"]
        process.functions["___udivti3"] = self.udivti3
        process.functions["dyld_stub_binder"] = self._unbound
        for name in ("flock", "minherit", "pthread_atfork", "madvise", "__cxa_atexit"):
            process.functions["_" + name] = self._nothing
        process.system_calls |= {
            53: self._nothing,
            329: self._nothing,
            372: lambda _: process.running.id,
            515: self._ulock_wait,
            516: self._ulock_wake,
        }
        process.end_of = self._end_of
        self.footprint = 1 << 20
        """Bytes, of TASK_VM_INFO."""
        self.processor_share = 0.0
        """Processors that the process uses, for getrusage(2)."""

    def _nothing(self, _: Sequence[int]) -> int:
        return 0

    def _unbound(self, _: Sequence[int]) -> int:
        raise AssertionError("bound lazily")

    def _fail(self, number: int) -> int:
        self.memory.set_word(self._errno, _ERRNO.get(number, number), 4)
        return _FAILED

    def text(self, address: int) -> str:
        """A C string."""
        return self.memory.string(address).decode()

    def string(self, text: str) -> int:
        """The address of a C string that stays."""
        if text not in self._strings:
            data = text.encode() + b"\0"
            self._strings[text] = self.process.allocate(len(data))
            self.memory.write(self._strings[text], data)
        return self._strings[text]

    # --- the lab's own ---

    def do_lab_note(self, arguments: Sequence[int]) -> int:
        """The program states a number."""
        self.notes[self.text(arguments[0])] = arguments[1]
        return 0

    # --- memory and strings ---

    def do_malloc(self, arguments: Sequence[int]) -> int:
        """Never gives memory again that was freed."""
        place = self.process.allocate(arguments[0])
        self._sizes[place] = arguments[0]
        return place

    def do_calloc(self, arguments: Sequence[int]) -> int:
        """As malloc: that is zeroed."""
        return self.do_malloc([arguments[0] * arguments[1]])

    def do_realloc(self, arguments: Sequence[int]) -> int:
        """Moves always."""
        old, size = arguments[:2]
        place = self.do_malloc([size])
        if old:
            self.memory.write(place, self.memory.read(old, min(size, self._sizes[old])))
            self.do_free([old])
        return place

    def do_free(self, arguments: Sequence[int]) -> int:
        """Unmap: a use after it is a fault."""
        if arguments[0]:
            self.process.free(arguments[0], self._sizes.pop(arguments[0]))
        return 0

    def do_memcpy(self, arguments: Sequence[int]) -> int:
        """Also for memmove."""
        to, source, size = arguments[:3]
        self.memory.write(to, self.memory.read(source, size))
        return to

    def do_memset(self, arguments: Sequence[int]) -> int:
        """See memset(3)."""
        to, value, size = arguments[:3]
        self.memory.write(to, bytes([value % 256]) * size)
        return to

    def do_bzero(self, arguments: Sequence[int]) -> int:
        """See bzero(3)."""
        return self.do_memset([arguments[0], 0, arguments[1]])

    def do_memcmp(self, arguments: Sequence[int]) -> int:
        """See memcmp(3)."""
        first, second = (self.memory.read(place, arguments[2]) for place in arguments[:2])
        return (first > second) - (first < second)

    def do_memchr(self, arguments: Sequence[int]) -> int:
        """See memchr(3)."""
        place, value, size = arguments[:3]
        offset = self.memory.read(place, size).find(bytes([value % 256]))
        return 0 if offset < 0 else place + offset

    def do_strlen(self, arguments: Sequence[int]) -> int:
        """See strlen(3)."""
        return len(self.memory.string(arguments[0]))

    def do_strcmp(self, arguments: Sequence[int]) -> int:
        """See strcmp(3)."""
        return self.do_strncmp([*arguments[:2], 1 << 30])

    def do_strncmp(self, arguments: Sequence[int]) -> int:
        """See strncmp(3)."""
        first, second = (self.memory.string(place)[: arguments[2]] for place in arguments[:2])
        return (first > second) - (first < second)

    def do_strncpy(self, arguments: Sequence[int]) -> int:
        """See strncpy(3)."""
        to, source, size = arguments[:3]
        self.memory.write(to, self.memory.string(source)[:size].ljust(size, b"\0"))
        return to

    def do_strcpy(self, arguments: Sequence[int]) -> int:
        """See strcpy(3)."""
        self.memory.write(arguments[0], self.memory.string(arguments[1]) + b"\0")
        return arguments[0]

    def do_strcat(self, arguments: Sequence[int]) -> int:
        """See strcat(3)."""
        self.do_strcpy([arguments[0] + self.do_strlen(arguments[:1]), arguments[1]])
        return arguments[0]

    def do_strcspn(self, arguments: Sequence[int]) -> int:
        """See strcspn(3)."""
        text, stops = self.memory.string(arguments[0]), self.memory.string(arguments[1])
        return next((at for at, byte in enumerate(text) if byte in stops), len(text))

    def do_strchr(self, arguments: Sequence[int]) -> int:
        """See strchr(3)."""
        text, value = self.memory.string(arguments[0]) + b"\0", bytes([arguments[1] % 256])
        return arguments[0] + text.index(value) if value in text else 0

    def do_strrchr(self, arguments: Sequence[int]) -> int:
        """See strrchr(3)."""
        text, value = self.memory.string(arguments[0]) + b"\0", bytes([arguments[1] % 256])
        return arguments[0] + text.rindex(value) if value in text else 0

    def do_snprintf(self, arguments: Sequence[int]) -> int:
        """As much of it as is used; variadic arguments are on the stack on arm64."""
        to, size, form = arguments[:3]
        values = [self.memory.word(self.process.cpu.sp + 8 * index) for index in range(8)]
        if not self.process.arch.is_arm64:
            values = [*arguments[3:], *values]

        def converted(match: re.Match[str]) -> str:
            flags, width, precision, kind = match.groups()
            value = values.pop(0)
            if kind == "s":
                text = self.text(value)[: int(precision or 4096)]
            else:
                text = f"{value:{kind.replace('u', 'd')}}"
            return (
                text.ljust(int(width or 0))
                if "-" in flags
                else text.rjust(int(width or 0), "0" if "0" in flags else " ")
            )

        data = _FORMAT.sub(converted, self.text(form)).encode()
        self.memory.write(to, data[: size - 1] + b"\0")
        return len(data)

    def do_qsort(self, arguments: Sequence[int]) -> Steps:
        """By insertion."""
        start, count, size, compare = arguments[:4]
        rows = [self.memory.read(start + size * index, size) for index in range(count)]
        first, second = self.process.allocate(size), self.process.allocate(size)
        ordered: list[bytes] = []
        for row in rows:
            low, high = 0, len(ordered)
            while low < high:
                middle = (low + high) // 2
                self.memory.write(first, row)
                self.memory.write(second, ordered[middle])
                result = yield compare, (first, second)
                if result % (1 << 32) >> 31:
                    high = middle
                else:
                    low = middle + 1
            ordered.insert(low, row)
        self.memory.write(start, b"".join(ordered))
        return 0

    def udivti3(self, arguments: Sequence[int]) -> int:
        """Division of 128 bits; the result fits into 64."""
        low, high, divisor_low, divisor_high = arguments[:4]
        return (low | high << 64) // (divisor_low | divisor_high << 64)

    def do_arc4random_buf(self, arguments: Sequence[int]) -> int:
        """See arc4random(3)."""
        self.memory.write(arguments[0], os.urandom(arguments[1]))
        return 0

    def do_getenv(self, arguments: Sequence[int]) -> int:
        """See getenv(3)."""
        value = self.environment.get(self.text(arguments[0]))
        return 0 if value is None else self.string(value)

    def do_getpid(self, _: Sequence[int]) -> int:
        """See getpid(2)."""
        return 77

    def do_sysconf(self, _: Sequence[int]) -> int:
        """The size of a page."""
        return self.process.page

    # --- files ---

    def do_open(self, arguments: Sequence[int]) -> int:
        """See open(2)."""
        path, flags = self.text(arguments[0]), arguments[1]
        if path.endswith(self.refuses):
            return self._fail(13)
        mode = flags & 3
        for bit, value in _FLAGS.items():
            mode |= value if flags & bit else 0
        try:
            return os.open(path, mode, 0o600)
        except OSError as error:
            return self._fail(error.errno or 0)

    def do_close(self, arguments: Sequence[int]) -> int:
        """See close(2)."""
        os.close(arguments[0])
        return 0

    def do_fstat(self, arguments: Sequence[int]) -> int:
        """st_mode and st_size."""
        status = os.fstat(arguments[0])
        self.memory.write(arguments[1], bytes(144))
        self.memory.set_word(arguments[1] + 4, status.st_mode, 2)
        self.memory.set_word(arguments[1] + 96, status.st_size)
        return 0

    def do_pwrite(self, arguments: Sequence[int]) -> int:
        """See pwrite(2)."""
        file, place, size, offset = arguments[:4]
        return os.pwrite(file, self.memory.read(place, size), offset)

    def do_rename(self, arguments: Sequence[int]) -> int:
        """See rename(2)."""
        try:
            Path(self.text(arguments[0])).rename(self.text(arguments[1]))
        except OSError as error:
            return self._fail(error.errno or 0)
        return 0

    def do_unlink(self, arguments: Sequence[int]) -> int:
        """See unlink(2)."""
        Path(self.text(arguments[0])).unlink()
        return 0

    def do_mmap(self, arguments: Sequence[int]) -> int:
        """Anonymous memory, or a file."""
        _, size, protection, flags, file = arguments[:5]
        if flags & _MAP_ANON:
            return self.process.allocate(size)
        place = self.process.reserve(size)
        rounded = -(-size // 0x4000) * 0x4000
        if flags & _MAP_SHARED:
            mapped = mmap.mmap(file, size)
            self._maps[place] = mapped
            host = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            self.process.uc.mem_map_ptr(place, size, protection & 3, host)
        else:
            self.process.uc.mem_map(place, rounded, 3)
            self.memory.write(place, os.pread(file, size, 0))
            self.process.uc.mem_protect(place, rounded, protection & 3)
        return place

    def do_munmap(self, arguments: Sequence[int]) -> int:
        """See munmap(2)."""
        place, size = arguments[:2]
        unit = 0x1000 if place in self._maps else 0x4000
        self.process.uc.mem_unmap(place, -(-size // unit) * unit)
        return 0

    # --- time ---

    def _tick(self) -> int:
        self.process.now += 1000
        return self.process.now

    def do_clock_gettime(self, arguments: Sequence[int]) -> int:
        """See clock_gettime(3)."""
        now = self._tick()
        self.memory.write(arguments[1], pack("<2Q", now // 10**9, now % 10**9))
        return 0

    def do_clock_gettime_nsec_np(self, _: Sequence[int]) -> int:
        """See clock_gettime_nsec_np(3)."""
        return self._tick()

    def do_mach_absolute_time(self, _: Sequence[int]) -> int:
        """In ns."""
        return self._tick()

    def do_usleep(self, arguments: Sequence[int]) -> Waiting:
        """See usleep(3)."""
        return Waiting(lambda: False, self.process.now + 1000 * arguments[0] + 1)

    def do_nanosleep(self, arguments: Sequence[int]) -> Waiting:
        """See nanosleep(2)."""
        seconds, rest = self.memory.word(arguments[0]), self.memory.word(arguments[0] + 8)
        return Waiting(lambda: False, self.process.now + 10**9 * seconds + rest + 1)

    # --- threads ---

    def do_pthread_self(self, _: Sequence[int]) -> int:
        """See pthread_self(3)."""
        return self.process.running.pthread

    def do_pthread_main_np(self, _: Sequence[int]) -> int:
        """Whether it is the first."""
        return self.process.running is self.main

    def do_pthread_threadid_np(self, arguments: Sequence[int]) -> int:
        """The calling thread's."""
        assert arguments[0] == 0
        self.memory.set_word(arguments[1], self.process.running.id)
        return 0

    def do_pthread_get_stackaddr_np(self, arguments: Sequence[int]) -> int:
        """The end of the calling thread's stack."""
        assert arguments[0] == self.process.running.pthread
        return self.process.running.stack.stop

    def do_pthread_get_stacksize_np(self, _: Sequence[int]) -> int:
        """Its size."""
        return len(self.process.running.stack)

    def do_pthread_setname_np(self, arguments: Sequence[int]) -> int:
        """See pthread_setname_np(3)."""
        self.process.running.name = self.text(arguments[0])
        return 0

    def do_pthread_create(self, arguments: Sequence[int]) -> int:
        """A thread begins in the program's _lab_thread_start, if it has that."""
        to, _, function, argument = arguments[:4]
        start = self.process.lookup("_lab_thread_start")
        if start is None:
            thread = self.process.start_thread(function & (1 << 47) - 1, argument)
        else:
            thread = self.process.start_thread(start, function, argument)
        self.memory.set_word(to, thread.pthread)
        return 0

    def do_pthread_join(self, arguments: Sequence[int]) -> Waiting:
        """See pthread_join(3)."""
        thread = next(one for one in self.process.threads if one.pthread == arguments[0])
        return Waiting(lambda: thread.has_ended)

    def do_pthread_sigmask(self, _: Sequence[int]) -> int:
        """No signals come."""
        return 0

    def do_pthread_mutex_init(self, arguments: Sequence[int]) -> int:
        """See pthread_mutex_init(3)."""
        self._mutexes.pop(arguments[0], None)
        return 0

    def do_pthread_mutex_lock(self, arguments: Sequence[int]) -> Steps:
        """Not recursive."""
        mutex, own = arguments[0], self.process.running.id
        assert self._mutexes.get(mutex) != own, "a thread waits for itself"
        while mutex in self._mutexes:
            yield Waiting(lambda: mutex not in self._mutexes)
        self._mutexes[mutex] = own
        return 0

    def do_pthread_mutex_trylock(self, arguments: Sequence[int]) -> int:
        """See pthread_mutex_trylock(3)."""
        if arguments[0] in self._mutexes:
            return 16  # EBUSY
        self._mutexes[arguments[0]] = self.process.running.id
        return 0

    def do_pthread_mutex_unlock(self, arguments: Sequence[int]) -> int:
        """By its owner."""
        assert self._mutexes.pop(arguments[0]) == self.process.running.id
        return 0

    def do_pthread_once(self, arguments: Sequence[int]) -> Steps:
        """See pthread_once(3)."""
        if arguments[0] not in self._once:
            self._once.add(arguments[0])
            yield arguments[1], ()
        return 0

    def do_pthread_key_create(self, arguments: Sequence[int]) -> int:
        """See pthread_key_create(3)."""
        key = _FIRST_KEY + len(self._keys)
        self._keys[key] = arguments[1]
        self.memory.set_word(arguments[0], key)
        return 0

    def do_pthread_setspecific(self, arguments: Sequence[int]) -> int:
        """See pthread_setspecific(3)."""
        self.memory.set_word(self.process.running.tsd + 8 * arguments[0], arguments[1])
        return 0

    def _end_of(self, thread: Thread) -> Steps:
        for key, destructor in self._keys.items():
            value = self.memory.word(thread.tsd + 8 * key)
            if value and destructor:
                self.memory.set_word(thread.tsd + 8 * key, 0)
                yield destructor, (value,)
        return 0

    def _ulock_wait(self, arguments: Sequence[int]) -> int | Waiting:
        _, address, value, timeout = arguments[:4]
        if self.memory.word(address, 4) != value % _GENERAL:
            return 0
        woken: list[bool] = []
        self._sleepers.setdefault(address, []).append(woken)
        deadline = self.process.now + 1000 * timeout
        return Waiting(lambda: bool(woken), deadline, timeout=-_ETIMEDOUT)

    def _ulock_wake(self, arguments: Sequence[int]) -> int:
        for woken in self._sleepers.pop(arguments[1], []):
            woken.append(True)
        return 0

    # --- Mach ---

    def do_mach_timebase_info(self, arguments: Sequence[int]) -> int:
        """One tick is a ns."""
        self.memory.write(arguments[0], pack("<2I", 1, 1))
        return 0

    def do_task_info(self, arguments: Sequence[int]) -> int:
        """TASK_VM_INFO has the footprint; other flavours fail."""
        _, flavour, place, count = arguments[:4]
        if flavour != _TASK_VM_INFO:
            return 5
        assert self.memory.word(count, 4) >= (_FOOTPRINT + 8) // 4
        self.memory.set_word(place + _FOOTPRINT, self.footprint)
        return 0

    def do_getrusage(self, arguments: Sequence[int]) -> int:
        """See getrusage(2); user time alone."""
        seconds, rest = divmod(int(self.processor_share * self.process.now), 10**9)
        self.memory.write(arguments[1], pack("<4Q", seconds, rest // 1000, 0, 0))
        return 0

    def do_vm_protect(self, arguments: Sequence[int]) -> int:
        """Pages have their real rights here: a store to one without is a fault."""
        _, start, size, _, protection = arguments[:5]
        if start % self.process.page or not any(a <= start <= b for a, b, _ in self._regions()):
            return 1
        protection &= 7
        self.process.uc.mem_protect(
            start, -(-size // self.process.page) * self.process.page, protection
        )
        self.protections.append((start, size, protection))
        return 0

    def do_vm_region_recurse_64(self, arguments: Sequence[int]) -> int:
        """The mapping at an address, or the next one."""
        _, address, size, depth, info = arguments[:5]
        wanted = self.memory.word(address)
        regions = sorted(self._regions())
        region = next((region for region in regions if region[1] >= wanted), None)
        if region is None:
            return 1
        self.memory.set_word(address, region[0])
        self.memory.set_word(size, region[1] + 1 - region[0])
        self.memory.set_word(depth, 0, 4)
        self.memory.write(info, pack("<3IQI8xI12x", region[2], 7, 1, 0, 0, 0))
        return 0

    def do_vm_read_overwrite(self, arguments: Sequence[int]) -> int:
        """All or nothing."""
        _, address, size, place, got = arguments[:5]
        try:
            data = self.memory.read(address, size)
        except Exception:  # noqa: BLE001 (unicorn's error)
            return 1
        self.memory.write(place, data)
        self.memory.set_word(got, size)
        return 0

    # --- dyld ---

    def do__dyld_register_func_for_add_image(self, arguments: Sequence[int]) -> Steps:
        """Reports the present images at once."""
        self.on_add.append(arguments[0])
        for image in list(self.process.images):
            yield arguments[0], (image.header, image.slide)
        return 0

    def do__dyld_register_func_for_remove_image(self, arguments: Sequence[int]) -> int:
        """Reports later ones only."""
        self.on_remove.append(arguments[0])
        return 0

    def do_dladdr(self, arguments: Sequence[int]) -> int:
        """The image, and the nearest symbol below."""
        address, info = arguments[:2]
        for image in self.process.images:
            if address in image.range:
                below = {at: name for name, at in image.symbols.items() if at <= address}
                nearest = max(below, default=0)
                name = self.string(below[nearest].removeprefix("_")) if nearest else 0
                self.memory.write(
                    info, packed(self.string(image.path), image.header, name, nearest)
                )
                return 1
        return 0

    def do_dlopen(self, arguments: Sequence[int]) -> Steps:
        """A handle; all but the first image may be loaded and unloaded."""
        path = self.text(arguments[0]) if arguments[0] else self.process.images[0].path
        image = next((loaded for loaded in self.process.images if loaded.path == path), None)
        if image is None and (arguments[1] & _NOLOAD or not Path(path).exists()):
            return 0
        if image is None:
            options = self.files.get(path, {})
            image = self.process.load(path, Path(path), **options)  # type: ignore[arg-type]
            for function in self.on_add:
                yield function, (image.header, image.slide)
            yield from self.initialize(image)
        else:
            image.references += 1
        self._handles[image.header] = image
        return image.header

    def start(self, function: int) -> int:
        """Initialise the images, and run the main thread; its result."""
        self.process.functions["_start"] = self._initialize_all
        start = self.process.lookup("_start")
        assert start is not None
        self.process.run(self.process.start_thread(start))
        self.main = self.process.start_thread(function)
        return self.process.run(self.main)

    def _initialize_all(self, _: Sequence[int]) -> Steps:
        for image in list(self.process.images):
            yield from self.initialize(image)
        return 0

    def initialize(self, image: LoadedImage) -> Steps:
        """Register an image's classes, and run its initialisers."""
        objc = self.process.lookup("_lab_map_image")
        if objc is not None:
            yield objc, (image.header, image.slide)
        for section in image.contents.image.sections:
            if section.name == "__mod_init_func":
                for at in range(section.address, section.address + section.size, 8):
                    yield self.memory.word(at + image.slide), ()
        return 0

    def do_dlclose(self, arguments: Sequence[int]) -> Steps:
        """See dlclose(3)."""
        image = self._handles[arguments[0]]
        image.references -= 1
        if image.references == 0:
            for function in self.on_remove:
                yield function, (image.header, image.slide)
            self.process.unload(image)
        return 0

    def do_dlsym(self, arguments: Sequence[int]) -> int:
        """In all images. Functions are signed where the architecture does that."""
        address = self.process.lookup("_" + self.text(arguments[1])) or 0
        is_code = any(a <= address <= b and rights & 4 for a, b, rights in self._regions())
        if self.process.arch is Arch.ARM64E and is_code:
            return self.process.cpu.signed(address, 0, 0)
        return address

    def _regions(self) -> list[tuple[int, int, int]]:
        return list(self.process.uc.mem_regions())
