'use strict';
// Controls the agent (agent/include/machtrace.h) in the process: loads and starts it, stops it, and
// sends its spool. Requests and answers are those of agent.js.

const LARGEST_PART = 8 * 1024 * 1024;
const EALREADY = { linux: 114, darwin: 37 };
const NAMES = ['Machtrace', 'libmachtrace.so', 'libmachtrace.dylib'];
const GIVES_CONSENT = 4; // MACHTRACE_GIVES_CONSENT

let current = null;
let agent = null;
let kept = []; // what the agent's options refer to until it has started

const part = (name, bytes) => send({ id: current, part: name }, bytes);
const call = (name, type, types, ...values) =>
  new NativeFunction(agent.getExportByName(name), type, types)(...values);

function text(words) {
  const pointer = Memory.allocUtf8String(words);
  kept.push(pointer);
  return pointer;
}

function loaded(library) {
  const inside = NAMES.map(name => Process.findModuleByName(name)).find(each => each !== null);
  if (inside !== undefined) return inside;
  if (library === null) throw new Error('the process has no agent');
  return Module.load(library);
}

function getenv(name) {
  const find = new NativeFunction(Module.getGlobalExportByName('getenv'), 'pointer', ['pointer']);
  const value = find(text(name));
  return value.isNull() ? '' : value.readUtf8String();
}

const calls = {
  begin() {
    return { platform: Process.platform, arch: Process.arch, pid: Process.id, version: Frida.version,
      pointer_size: Process.pointerSize };
  },

  // Starts the agent; the answer is the path of its spool, or the error's number.
  start(options) {
    if (Process.pointerSize !== 8) throw new Error('a process of 32 bits');
    agent = loaded(options.library);
    const folder = options.folder || getenv('TMPDIR') || '/tmp';
    const path = `${folder.replace(/\/+$/, '')}/machtrace-${Process.id}-${Date.now()}.spool`;
    // struct machtrace_function
    const functions = Memory.alloc(16 * Math.max(1, options.functions.length));
    options.functions.forEach((name, index) => {
      functions.add(16 * index).writePointer(text(name));
      functions.add(16 * index + 8).writeU32(name === options.consent ? GIVES_CONSENT : 0);
    });
    // struct machtrace_options; what is zero has its default
    const size = 96, struct = Memory.alloc(size);
    struct.writeByteArray(new Uint8Array(size).buffer);
    struct.writeU32(size);
    struct.add(8).writePointer(text(path));
    struct.add(16).writeU64(options.spool_size);
    struct.add(40).writePointer(functions);
    struct.add(48).writeU64(options.functions.length);
    const error = call('machtrace_start', 'int', ['pointer'], struct);
    kept = [];
    return { path, error, runs_already: error === EALREADY[Process.platform] };
  },

  stop() {
    return call('machtrace_stop', 'int', []);
  },

  // Sends a file in parts, and removes it.
  take(path) {
    const file = new File(path, 'rb');
    try {
      for (;;) {
        const bytes = file.readBytes(LARGEST_PART);
        if (bytes.byteLength === 0) break;
        part('spool', bytes);
      }
    } finally {
      file.close();
    }
    const unlink = new NativeFunction(Module.getGlobalExportByName('unlink'), 'int', ['pointer']);
    unlink(text(path));
    kept = [];
    return true;
  },
};

function answer(message) {
  current = message.id;
  recv(answer);
  try {
    send({ id: current, value: calls[message.call](...message.args) });
  } catch (e) {
    send({ id: current, error: String(e.message || e) });
  }
}

recv(answer);
