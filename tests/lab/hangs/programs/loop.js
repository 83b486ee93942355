// A program with a main loop: the counterpart of loop.c in node, with the same commands.
//
//   node loop.js MODE BOOT_OFFSET_NS
//
// The offset is CLOCK_BOOTTIME minus CLOCK_MONOTONIC, which is the clock of process.hrtime.
"use strict";
const fs = require("fs");
const zlib = require("zlib");
const crypto = require("crypto");
const child = require("child_process");

const TRUTH = 3;
const offset = BigInt(process.argv[3] || 0);
const now = () => process.hrtime.bigint() + offset;
const text = Buffer.from(Array.from({ length: 60000 }, (_, n) => `${n} ${(n * n) % 977};`).join(""));
const documentText = JSON.stringify(Array.from({ length: 60000 }, (_, n) => ({ number: n, names: ["a", "b", String(n)] })));
const backtracking = /^(a+)+$/;
const cell = new Int32Array(new SharedArrayBuffer(4));

function until(ms, step) {
  const end = process.hrtime.bigint() + BigInt(ms) * 1000000n;
  while (process.hrtime.bigint() < end) step();
}
function burn_in_one(ms) { until(ms, () => { let sum = 0; for (let n = 0; n < 5000; n++) sum += n; return sum; }); }
function costly_a(ms) { until(ms * 0.99 | 0, () => { let sum = 0; for (let n = 0; n < 5000; n++) sum += n; return sum; }); }
function cheap_b(ms) { until(Math.max(1, ms * 0.01 | 0), () => 0); }
function a_then_b(ms) { costly_a(ms); cheap_b(ms); }
function wait_in_atomics(ms) { Atomics.wait(cell, 0, 0, ms); }
function parse_document(ms) { until(ms, () => JSON.parse(documentText)); }
function compress_text(ms) { until(ms, () => zlib.deflateSync(text)); }
function match_pattern(ms) { until(ms, () => backtracking.test("a".repeat(22) + "b")); }
function derive_key(ms) { until(ms, () => crypto.pbkdf2Sync("secret", "salt", 20000, 64, "sha512")); }
function run_child(ms) { child.execFileSync("/bin/sleep", [String(ms / 1000)]); }
function timer(ms) { setTimeout(() => 0, ms); }
function collect_garbage(ms) {
  const rows = [];
  for (let n = 0; n < ms * 2000; n++) rows.push({ n, next: rows[n - 1] });
  if (global.gc) global.gc();
}
function nothing() {}
const shortTasks = Array.from({ length: 8 }, (_, n) => new Function("until", `return function short_task_${n}(ms) { until(ms, () => { let sum = 0; for (let k = 0; k < 5000; k++) sum += k; return sum; }); }`)(until));
let turn = 0;
function short_task(ms) { shortTasks[turn++ % 8](ms); }

const actions = {
  burn: burn_in_one, "a-then-b": a_then_b, sleep: wait_in_atomics, json: parse_document, zlib: compress_text,
  regex: match_pattern, pbkdf2: derive_key, child: run_child, timer, gc: collect_garbage, nothing, short: short_task,
};

function execute(id, action, ms) {
  const cpu = process.cpuUsage();
  const began = now();
  actions[action](ms);
  const ended = now();
  const used = process.cpuUsage(cpu);
  fs.writeSync(TRUTH, `{"id": ${id}, "action": "${action}", "began": ${began}, "ended": ${ended}, "cpu": ${(used.user + used.system) * 1000}}\n`);
}

let rest = "";
process.stdin.on("data", (block) => {
  const lines = (rest + block).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    const [id, action, ms, count] = line.split(" ");
    for (let n = 0; n < Number(count); n++) setImmediate(execute, Number(id), action, Number(ms));
  }
});
process.stdin.on("end", () => process.exit(0));
fs.writeSync(TRUTH, `{"started": ${now()}}\n{"ready": ${now()}}\n`);
