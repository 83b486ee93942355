'use strict';
// Runs in the target, loaded by frida_script.py. It answers one request at a time: a message
// {id, call, args} by {id, value} or {id, error}, and before it {id, part} with bytes each.

const MOST_THREADS = 16384;
const THREAD_SIZE = 8 * 14 + 512; // struct thread of frida_linux.c and frida_darwin.c
const LISTED_SIZE = 8 * 3 + 64; // struct listed of frida_darwin.c
const SMALLEST_ROOM = 16 * 1024 * 1024;
const LARGEST_PART = 32 * 1024 * 1024; // a message of Frida's holds 128 MiB
const MOST_ROUNDS = 4; // a process can start threads faster than they are copied
const PAGE = 4096;

let current = null;

const part = (name, bytes) => send({ id: current, part: name }, bytes);
const text = path => { try { return File.readAllText(path); } catch (e) { return ''; } };
const exported = name => Module.findGlobalExportByName(name);
const alloc = size => Memory.alloc(Math.max(size, 8));

function write(pointer, values) {
  values.forEach((value, index) => pointer.add(8 * index).writeU64(uint64(value.toString())));
}

function compiled(defines, source, needed) {
  const symbols = {};
  for (const [name, address] of Object.entries(needed)) {
    if (address === null) throw new Error(`the process has no ${name}`);
    symbols[name] = address.strip();
  }
  return new CModule(defines + source, symbols);
}

// Copies all threads of `rows`; when the room is full, what is in it is sent, and it goes on.
function copied(copyThreads, job, rows, count, fields) {
  const at = index => job.add(8 * index).readU64().toNumber();
  while (at(2) < count) {
    const first = at(2);
    const error = copyThreads(job);
    const next = at(2);
    if (next > first) {
      part('threads', rows.add(THREAD_SIZE * first).readByteArray(THREAD_SIZE * (next - first)));
      for (let from = 0, used = at(fields.used); from === 0 || from < used; from += LARGEST_PART)
        part('stacks', fields.room.add(from).readByteArray(Math.min(LARGEST_PART, used - from)));
      part('copied', null);
    }
    job.add(8 * fields.used).writeU64(0);
    if (error !== 0) return error;
    if (next === first) return -1;
  }
  return 0;
}

const roomFor = options => Math.max(SMALLEST_ROOM, 2 * (options.stackLimit + 4 * PAGE));

// --- Linux ---

// asm/unistd.h of each architecture.
const SYSTEM_CALLS = {
  x64: { read: 0, close: 3, rt_sigprocmask: 14, sched_yield: 24, nanosleep: 35, getpid: 39, exit: 60, wait4: 61,
    ptrace: 101, prctl: 157, getdents64: 217, clock_gettime: 228, waitid: 247, openat: 257, process_vm_readv: 310 },
  arm64: { read: 63, close: 57, rt_sigprocmask: 135, sched_yield: 124, nanosleep: 101, getpid: 172, exit: 93,
    wait4: 260, ptrace: 117, prctl: 167, getdents64: 61, clock_gettime: 113, waitid: 95, openat: 56,
    process_vm_readv: 270 },
  ia32: { read: 3, close: 6, rt_sigprocmask: 175, sched_yield: 158, nanosleep: 162, getpid: 20, exit: 1, wait4: 114,
    ptrace: 26, prctl: 172, getdents64: 220, clock_gettime: 265, waitid: 284, openat: 295, process_vm_readv: 347 },
  arm: { read: 3, close: 6, rt_sigprocmask: 175, sched_yield: 158, nanosleep: 162, getpid: 20, exit: 1, wait4: 114,
    ptrace: 26, prctl: 172, getdents64: 217, clock_gettime: 263, waitid: 280, openat: 322, process_vm_readv: 376 },
};

const linux = {
  begin(source) {
    const numbers = Object.entries(SYSTEM_CALLS[Process.arch] || {});
    const defines = numbers.map(([name, number]) => `#define SYS_${name} ${number}L\n`).join('');
    this.code = compiled(defines, source, { syscall: exported('syscall'), clone: exported('clone'),
      errno_location: exported('__errno_location') || exported('__errno') });
    const f = (name, result, args) => new NativeFunction(this.code[name], result, args, { scheduling: 'exclusive' });
    this.copyThreads = f('copy_threads', 'int', ['pointer']);
    this.listThreads = f('list_threads', 'long', ['pointer', 'uint64']);
    this.readMemory = f('read_memory', 'size_t', ['uint64', 'pointer', 'size_t']);
    this.ids = alloc(8 * MOST_THREADS);
    this.childStack = alloc(16 * PAGE);
  },

  facts() {
    part('auxv', File.readAllBytes('/proc/self/auxv'));
    return { status: text('/proc/self/status'), arguments: text('/proc/self/cmdline'), maps: text('/proc/self/maps') };
  },

  threads() {
    const count = Number(this.listThreads(this.ids, MOST_THREADS));
    if (count < 0) throw new Error('/proc/self/task cannot be read');
    const found = [];
    for (let i = 0; i < count; i++) {
      const id = this.ids.add(8 * i).readU64().toNumber();
      const isOwn = Cloak.hasThread(id) || id === Process.getCurrentThreadId();
      found.push({ id, isOwn, name: text(`/proc/self/task/${id}/comm`).replace(/\n$/, '') });
    }
    return found;
  },

  waiting(id) { return text(`/proc/self/task/${id}/syscall`); },

  watch() { return false; },
  unwatch() { return null; },

  poll(id, withStatus) {
    const of = name => text(`/proc/self/task/${id}/${name}`);
    return { call: of('syscall'), schedule: of('schedstat'), status: withStatus ? of('status') : '' };
  },

  usage(withThreads) {
    const use = id => ({ id, stat: text(`/proc/self/task/${id}/stat`), schedule: text(`/proc/self/task/${id}/schedstat`) });
    const threads = withThreads ? this.threads().filter(one => !one.isOwn).map(one => use(one.id)) : [];
    return { statm: text('/proc/self/statm'), stat: text('/proc/self/stat'), threads };
  },

  capture(options) {
    const known = new Set(), threads = [];
    let maps = '', error = 0;
    for (let round = 0; round < MOST_ROUNDS && error === 0; round++) {
      const fresh = this.threads().filter(one => !known.has(one.id));
      if (fresh.length === 0) break;
      fresh.forEach(one => { known.add(one.id); one.isNew = round !== 0; threads.push(one); });
      const wanted = fresh.filter(one => !one.isOwn && (options.ids === null || options.ids.includes(one.id)));
      maps = text('/proc/self/maps');
      if (wanted.length !== 0) error = this.copy(wanted, maps, options);
      if (options.ids !== null) break;
    }
    return { threads, maps, error };
  },

  copy(threads, maps, options) {
    const ranges = [];
    for (const line of maps.split('\n')) {
      const found = /^([0-9a-f]+)-([0-9a-f]+) r/.exec(line);
      if (found !== null) ranges.push(`0x${found[1]}`, `0x${found[2]}`);
    }
    const table = alloc(8 * ranges.length);
    write(table, ranges);
    const rows = alloc(THREAD_SIZE * threads.length);
    threads.forEach((one, i) => rows.add(THREAD_SIZE * i).writeU64(one.id));
    const size = roomFor(options), room = alloc(size), job = alloc(8 * 18);
    write(job, [rows, threads.length, 0, table, ranges.length / 2, room, size, 0, options.stackLimit,
      options.stopLimit, options.sleepLimit, this.childStack.add(16 * PAGE - 64), options.mayAllow ? 1 : 0, 0, 0,
      ...options.layout]);
    return copied(this.copyThreads, job, rows, threads.length, { room, used: 7 });
  },
};

// --- Darwin ---

// CFRunLoop.h: before timers, before sources, before waiting, after waiting and at the end of a loop.
const RUN_LOOP_ACTIVITIES = 2 | 4 | 32 | 64 | 128;

// thread_get_state: flavor and count; bytes to sp, and to what holds a Swift function's context.
const THREAD_STATES = { arm64: [6, 68, 31 * 8, 22 * 8], x64: [4, 42, 7 * 8, 14 * 8] };

const darwin = {
  begin(source) {
    const needed = {};
    for (const found of source.matchAll(/^extern \w+ (\w+)/gm)) needed[found[1]] = exported(found[1]);
    this.code = compiled('', source, needed);
    const f = (name, result, args) => new NativeFunction(this.code[name], result, args, { scheduling: 'exclusive' });
    this.copyThreads = f('copy_threads', 'int', ['pointer']);
    this.listThreads = f('list_threads', 'long', ['pointer', 'uint64']);
    this.releaseThreads = f('release_threads', 'void', ['pointer', 'uint64']);
    this.readMemory = f('read_memory', 'uint64', ['uint64', 'pointer', 'uint64']);
  },

  facts() {
    return { addressBits: this.addressBits(), main: Process.mainModule.base.toString(), images: this.images() };
  },

  images() {
    return Process.enumerateModules().map(one => ({ base: one.base.toString(), path: one.path }));
  },

  addressBits() {
    const address = exported('sysctlbyname');
    if (address === null) return 0;
    const query = new NativeFunction(address, 'int', ['pointer', 'pointer', 'pointer', 'pointer', 'size_t']);
    const value = alloc(8), size = alloc(8);
    size.writeU64(4);
    const name = Memory.allocUtf8String('machdep.virtual_address_size');
    return query(name, value, size, NULL, 0) === 0 ? value.readU32() : 0;
  },

  // Runs `use` with the threads; their ports are good until it is done.
  withThreads(use) {
    const listed = alloc(LISTED_SIZE * MOST_THREADS);
    const count = Number(this.listThreads(listed, MOST_THREADS));
    if (count < 0) throw new Error('task_threads failed');
    try {
      const found = [];
      for (let i = 0; i < count; i++) {
        const one = listed.add(LISTED_SIZE * i);
        const port = one.add(8).readU64().toNumber();
        found.push({ port, id: one.readU64().toNumber(), name: one.add(24).readCString(), isNew: false,
          isOwn: Cloak.hasThread(port) || port === Process.getCurrentThreadId(),
          queue: this.queueLabel(one.add(16).readU64()) });
      }
      return use(found);
    } finally {
      this.releaseThreads(listed, count);
    }
  },

  // dispatch_queue_offsets of libdispatch: version, then where the label is; of version 4 on, a pointer to it.
  queueLabel(address) {
    const offsets = exported('dispatch_queue_offsets');
    if (offsets === null || address.equals(uint64(0)) || offsets.readU16() < 4) return '';
    const word = at => {
      const to = alloc(8);
      return Number(this.readMemory(at, to, 8)) === 8 ? to.readPointer().strip() : NULL;
    };
    const queue = word(address);
    const label = queue.isNull() ? NULL : word(uint64(queue.add(offsets.add(2).readU16()).toString()));
    if (label.isNull()) return '';
    const bytes = alloc(256);
    const got = Number(this.readMemory(uint64(label.toString()), bytes, 255));
    bytes.add(got).writeU8(0);
    return bytes.readCString();
  },

  threads() { return this.withThreads(threads => threads); },

  // An observer of the main run loop, after all others: its own work before it sleeps counts, too.
  watch() {
    const word = 'pointer';
    const f = (name, result, args) => new NativeFunction(exported(name), result, args);
    if (['CFRunLoopGetMain', 'CFRunLoopObserverCreate', 'CFRunLoopAddObserver', 'CFRunLoopObserverInvalidate',
      'CFRelease', 'kCFRunLoopCommonModes'].some(name => exported(name) === null)) return false;
    this.beacon = alloc(16);
    this.beaconNow = new NativeFunction(this.code.read_beacon, 'void', [word, word]);
    const context = alloc(40); // CFRunLoopObserverContext: version, info and three functions
    context.add(8).writePointer(this.beacon);
    const create = f('CFRunLoopObserverCreate', word, [word, 'ulong', 'uint8', 'long', word, word]);
    this.observer = create(NULL, RUN_LOOP_ACTIVITIES, 1, 0x7fffffff, this.code.observe, context);
    const loop = f('CFRunLoopGetMain', word, [])();
    f('CFRunLoopAddObserver', 'void', [word, word, word])(loop, this.observer, exported('kCFRunLoopCommonModes').readPointer());
    return true;
  },

  unwatch() {
    if (!this.observer) return null;
    new NativeFunction(exported('CFRunLoopObserverInvalidate'), 'void', ['pointer'])(this.observer);
    Thread.sleep(0.05); // the main thread may be in the observer, whose code is unloaded next
    new NativeFunction(exported('CFRelease'), 'void', ['pointer'])(this.observer);
    this.observer = null;
    return null;
  },

  // thread_basic_info: seconds and microseconds of user and system time, two more, and the run state.
  use(port) {
    this.threadInfo = this.threadInfo
      || new NativeFunction(exported('thread_info'), 'int', ['uint32', 'uint32', 'pointer', 'pointer']);
    const info = alloc(40), count = alloc(8);
    count.writeU32(10);
    if (this.threadInfo(port, 3, info, count) !== 0) return { used: 0, state: 0 };
    const at = word => info.add(4 * word).readU32();
    return { used: 1e6 * (at(0) + at(2)) + at(1) + at(3), state: at(6) };
  },

  poll(id) {
    const times = alloc(24);
    let isBusy = false, since = 0, tasks = 0;
    if (this.observer) {
      this.beaconNow(this.beacon, times);
      const [now, began] = [times.readU64(), times.add(8).readU64()];
      isBusy = !began.equals(0) && now.compare(began) >= 0;
      since = isBusy ? now.sub(began).toNumber() : 0;
      tasks = times.add(16).readU64().toNumber();
    }
    const row = { isBusy, since, tasks, used: 0, state: 0 };
    if (this.observer && !isBusy) return row;
    return this.withThreads(threads => Object.assign(row, ...threads.filter(one => one.id === id).map(one => this.use(one.port))));
  },

  // task_vm_info: the footprint is behind 18 words of 8 bytes.
  footprint() {
    const address = exported('task_info'), task = exported('mach_task_self_');
    if (address === null) return 0;
    const info = alloc(152), count = alloc(8);
    count.writeU32(38);
    const query = new NativeFunction(address, 'int', ['uint32', 'uint32', 'pointer', 'pointer']);
    return query(task.readU32(), 22, info, count) === 0 ? info.add(144).readU64().toNumber() : 0;
  },

  usage(withThreads) {
    const all = this.withThreads(threads => threads.map(one => ({ id: one.id, isOwn: one.isOwn, used: this.use(one.port).used })));
    const used = all.reduce((sum, one) => sum + one.used, 0);
    return { footprint: this.footprint(), used, threads: withThreads ? all.filter(one => !one.isOwn) : [] };
  },

  capture(options) {
    return this.withThreads(threads => {
      const wanted = threads.filter(one => !one.isOwn && (options.ids === null || options.ids.includes(one.id)));
      const error = wanted.length === 0 ? 0 : this.copy(wanted, options);
      return { threads, error, images: this.images() };
    });
  },

  copy(threads, options) {
    const rows = alloc(THREAD_SIZE * threads.length), ports = alloc(8 * threads.length);
    threads.forEach((one, i) => rows.add(THREAD_SIZE * i).writeU64(one.id));
    write(ports, threads.map(one => one.port));
    const size = roomFor(options), room = alloc(size), job = alloc(8 * 14);
    write(job, [rows, threads.length, 0, ports, room, size, 0, options.stackLimit, options.pointerMask,
      ...THREAD_STATES[Process.arch], options.unbounded]);
    return copied(this.copyThreads, job, rows, threads.length, { room, used: 6 });
  },
};

// --- what every system has ---

const system = { linux, darwin }[Process.platform];

const calls = {
  begin(sources) {
    if (system === undefined) throw new Error(`threads of ${Process.platform} are not copied`);
    const signedOnly = Process.codeSigningPolicy === 'required';
    if (!signedOnly) system.begin(sources[Process.platform]);
    return { platform: Process.platform, arch: Process.arch, pid: Process.id, version: Frida.version,
      program: Process.mainModule.path, signedOnly };
  },

  // Ranges in turn, each an address in hexadecimal and a size, up to the first byte that cannot be read.
  read(ranges) {
    const total = ranges.reduce((sum, range) => sum + range[1], 0);
    const room = alloc(total), sizes = [];
    let used = 0;
    for (const [address, size] of ranges) {
      const got = Number(system.readMemory(uint64(address), room.add(used), size));
      sizes.push(got);
      used += got;
    }
    part('memory', room.readByteArray(used));
    return sizes;
  },
};

function answer(message) {
  current = message.id;
  recv(answer);
  try {
    const handler = calls[message.call] || system[message.call].bind(system);
    send({ id: current, value: handler(...message.args) });
  } catch (e) {
    send({ id: current, error: String(e.message || e) });
  }
}

rpc.exports = { dispose() { if (system !== undefined) system.unwatch(); } };
recv(answer);
