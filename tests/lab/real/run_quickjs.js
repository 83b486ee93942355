function check(condition, what) { if (!condition) throw new Error(what); }
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
check(fib(11) === 89, "recursion");

class Shape { constructor(n) { this.n = n; } area() { return 0; } get double() { return 2 * this.n; } }
class Square extends Shape { area() { return this.n ** 2 + super.area(); } static unit() { return new Square(1); } #x = 3; x() { return this.#x; } }
check(new Square(3).area() === 9 && new Square(4).double === 8 && Square.unit().x() === 3, "classes");

let counter = (() => { let n = 0; return (by = 1) => n += by; })();
for (let i = 0; i < 10; i++) counter();
check(counter(2) === 12, "closures");
check(apply(x => x * x, 9) === 285, "callbacks");
let caught = 0;
try { apply(x => { if (x == 3) throw new TypeError("three"); return x; }, 5); } catch (e) { caught = e instanceof TypeError && e.message.length; } finally { caught++; }
check(caught === 6, "exceptions");
function deep(n) { return deep(n + 1) + 1; }
try { deep(0); check(false, "overflow"); } catch (e) { check(e instanceof InternalError, "stack"); }

function* numbers() { let x = 0; try { for (;;) { let y = yield x; x += y; } } finally { caught = 0; } }
let g = numbers(); g.next(); for (let i = 0; i < 5; i++) g.next(i); check(g.return(9).value === 9 && caught === 0, "generators");
let { a, b: [c, ...rest], ...others } = { a: 1, b: [2, 3, 4], d: 5 };
check(a + c + rest.length + others.d === 10, "destructuring");

let list = Array.from({ length: 60 }, (_, i) => (i * 7919) % 61);
list.sort((x, y) => x - y);
check(list.every((x, i) => !i || list[i - 1] <= x), "sort");
check(list.map(x => x * 2).filter(x => x % 3 === 0).reduce((x, y) => x + y, 0) > 0, "arrays");
check(JSON.stringify(JSON.parse('{"k":[1,2.5,"\\u00e4",null,true],"o":{"p":-1e-7}}')) === '{"k":[1,2.5,"ä",null,true],"o":{"p":-1e-7}}', "json");
let text = "the quick brown fox ".repeat(6);
check(text.replace(/(\w)(\w*)/g, (_, x, y) => x.toUpperCase() + y).startsWith("The Quick"), "regexps");
check(/^(?<y>\d{4})-(?<m>\d\d)$/u.exec("2024-05").groups.m === "05" && /(a+)+b/.test("aaab"), "groups");
check((0.1 + 0.2).toFixed(10) === "0.3000000000" && (255).toString(16) === "ff" && parseFloat("1.5e3") === 1500, "numbers");
check(String(1e21) === "1e+21" && (123.456).toPrecision(4) === "123.5" && Math.round(Math.sin(1) * 1e6) === 841471, "numbers");
check(2n ** 64n === 18446744073709551616n && BigInt("123456789012345678901234567890") % 97n > 0n, "bigints");
let m = new Map([[1, "a"], ["k", {}]]), s = new Set([1, 2, 2]); m.set(NaN, 1);
check(m.size === 3 && s.size === 2 && m.get(NaN) === 1 && [...m.keys()].length === 3, "maps");
let p = new Proxy({}, { get: (t, k) => k === "z" ? 26 : undefined, has: () => true });
check(p.z === 26 && "q" in p && Reflect.ownKeys({ x: 1, [Symbol.iterator]: 2 }).length === 2, "proxies");
let bytes = new Uint8Array([1, 2, 3, 4]); new DataView(bytes.buffer).setFloat32(0, 1.5);
check(bytes[0] === 63 && new Date(Date.UTC(2020, 1, 29)).toISOString() === "2020-02-29T00:00:00.000Z", "bytes");
check(`${[..."añ€😀"].length}` === "4" && "ß".toUpperCase() === "SS" && "\u0041\u030a".normalize("NFC") === "Å", "unicode");
label: for (let i = 0; ; i++) { switch (i) { case 0: continue label; case 5: break label; } } with ({ q: 3 }) { check(q === 3, "with"); }
check(eval("var e = 6; e * 7") === 42 && new Function("x", "return x + 1")(1) === 2, "eval");
var settled = 0;
(async () => { try { await null; await Promise.all([1, Promise.resolve(2)]); throw 7; } catch (x) { settled = x; } })();
42;
