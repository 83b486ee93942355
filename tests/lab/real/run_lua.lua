local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
assert(fib(14) == 377)

-- closures, upvalues, variable arguments
local function counter()
  local n = 0
  return function(by) n = n + (by or 1); return n end
end
local count = counter()
for _ = 1, 20 do count() end
assert(count(2) == 22)
local function total(...)
  local sum = 0
  for _, v in ipairs { ... } do sum = sum + v end
  return sum, select('#', ...)
end
assert(total(apply(function(i) return i * i end, 9)) == 285)

-- formatting and numbers
assert(string.format("%5.2f|%-6s|%06d|%x|%g|%q", 3.14159, "ab", -42, 255, 1e100, "a\nb")
  == " 3.14|ab    |-00042|ff|1e+100|\"a\\\nb\"")
assert(tostring(0.1) == "0.1" and tostring(1e15) == "1e+15" and tostring(2^53) == "9.007199254741e+15")
assert(tonumber("0x1p4") == 16 and tonumber("12.5e-1") == 1.25 and tonumber("z", 36) == 35)
assert(math.floor(-3.5) == -4 and math.tointeger(3.0) == 3 and 7 // -2 == -4 and -7 % 3 == 2)
assert(math.abs(math.sin(1) ^ 2 + math.cos(1) ^ 2 - 1) < 1e-12)

-- errors: across C, with handlers, with objects, out of the stack
local ok, message = pcall(error, { code = 7 })
assert(not ok and message.code == 7)
ok, message = pcall(function() local x = nil; return x.field end)
assert(not ok and message:find("index"))
ok, message = xpcall(function() apply(function(i) if i == 3 then error("three") end end, 5) end,
  function(m) return debug.traceback(m, 1) end)
assert(not ok and message:find("three") and message:find("apply"))
local function deep(n) return (("x"):gsub(".", function() return deep(n + 1) end)) end
ok = pcall(deep, 1)
assert(not ok)
local depth = 0
local function nested() depth = depth + 1; return pcall(nested) end
nested()
assert(depth > 20)

-- coroutines
local produce = coroutine.wrap(function()
  for i = 1, 10 do coroutine.yield(i) end
  pcall(function() coroutine.yield(11); error("x") end)
  return 12
end)
local seen = {}
for i = 1, 12 do seen[i] = produce() end
assert(#seen == 12 and seen[11] == 11 and seen[12] == 12)
local generator = coroutine.create(function(a) local b = coroutine.yield(a + 1); error(b) end)
assert(select(2, coroutine.resume(generator, 1)) == 2)
assert(not coroutine.resume(generator, "stop") and coroutine.status(generator) == "dead")

-- strings and patterns, with callbacks
local text = ("the quick brown fox jumps over the lazy dog "):rep(12)
local words, kinds = 0, {}
for word in text:gmatch("%a+") do words = words + 1; kinds[word] = (kinds[word] or 0) + 1 end
assert(words == 108 and kinds.the == 24)
assert(text:gsub("(%a)(%a*)", function(a, b) return a:upper() .. b end):sub(1, 9) == "The Quick")
assert(("key = value"):match("^(%w+)%s*=%s*(%w+)$") == "key")
assert(("%d"):rep(3, ","):format(1, 2, 3) == "1,2,3")
assert(string.pack("<i4z", 7, "ab"):len() == 7 and string.unpack("<i4", "\1\0\0\0") == 1)
assert(utf8.char(228, 8364) == "\u{e4}\u{20ac}" and utf8.len("\u{e4}\u{20ac}") == 2)

-- tables: sorting with a comparison, metatables, collection
local items = {}
for i = 1, 150 do items[i] = { key = (i * 7919) % 151, name = "n" .. i } end
table.sort(items, function(a, b) return a.key < b.key end)
for i = 2, #items do assert(items[i - 1].key <= items[i].key) end
assert(table.concat({ 1, 2, 3 }, "-") == "1-2-3" and #table.pack(table.unpack(items, 1, 50)) == 50)
local vector = {}
vector.__index = vector
vector.__add = function(a, b) return setmetatable({ a[1] + b[1] }, vector) end
vector.__eq = function(a, b) return a[1] == b[1] end
vector.__lt = function(a, b) return a[1] < b[1] end
vector.__call = function(self, n) return self[1] * n end
vector.__concat = function(a, b) return "v" end
vector.__len = function() return 3 end
vector.__close = function() seen.closed = true end
vector.__gc = function() seen.collected = true end
local v = setmetatable({ 1 }, vector) + setmetatable({ 2 }, vector)
assert(v(5) == 15 and v == setmetatable({ 3 }, vector) and #v == 3 and v .. "x" == "v")
do local held <close> = v end
assert(seen.closed)
v = nil
collectgarbage()
assert(seen.collected)
collectgarbage("generational")
local garbage = {}
for i = 1, 400 do garbage[i % 10] = { i, tostring(i) } end
collectgarbage("incremental")

-- code made of text, and again from its bytes
local made = assert(load("local a, b = ... ; goto done; a = 1 ::done:: return a * b + 0x10"))
assert(made(2, 13) == 42)
assert(load(string.dump(made), "dumped", "b")(2, 13) == 42)
assert(not load("x = = 1"))
assert(os.time { year = 2020, month = 2, day = 29, hour = 12 } == 1582977600 and not io.open("x"))
return made(2, 13)
