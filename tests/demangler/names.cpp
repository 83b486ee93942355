// Functions whose mangled names have one of each part of the grammar.
namespace std { inline namespace __1 { template <class T> class allocator {}; template <class C> struct char_traits {};
template <class C, class T = char_traits<C>, class A = allocator<C>> class basic_string {}; using string = basic_string<char>; } }
typedef decltype(nullptr) nullptr_t;
typedef unsigned long size_t;
#define KEEP __attribute__((used, noinline))
namespace names {
struct Plain { int member; int method(int) const; static int shared; };
struct Other {};
enum class Colour { red, green };
union Either { int a; float b; };
KEEP int Plain::method(int x) const { return x; }
namespace { KEEP int hidden(Plain &p) { return p.member; } struct Within { KEEP int method() { return 1; } }; }
KEEP int use_hidden(Plain &p) { return hidden(p) + Within().method(); }

// qualifiers, pointers, references, arrays, functions
KEEP void pointers(const char *, char *const *, volatile int *, const volatile void *, int *__restrict) {}
KEEP void references(int &, int &&, const Plain &, Plain *&) {}
KEEP void arrays(int (*)[3], int (&)[2][4], char *(*)[5]) {}
KEEP void functions(int (*)(char), int (*(*)(float))(double), void (&)(), int (*)(int, ...), int (*)() noexcept) {}
KEEP void members(int Plain::*, int (Plain::*)(int) const, void (Plain::*)() &, void (Plain::*)() const &&) {}
KEEP void builtins(bool, char, signed char, unsigned char, short, unsigned short, int, unsigned, long, unsigned long,
  long long, unsigned long long, __int128, unsigned __int128, float, double, long double, wchar_t, char16_t, char32_t, nullptr_t) {}
KEEP void more_builtins(char8_t, _Float16, _BitInt(12), unsigned _BitInt(7)) {}
KEEP void many(Plain *, Plain &, const Plain *, Plain **, Colour, Either, Plain *, const Plain *, Colour *) {}
typedef float vec4 __attribute__((ext_vector_type(4)));
KEEP void vectors(vec4, vec4 *, _Complex double) {}
KEEP void variadic(int, ...) {}
struct RefQualified { KEEP void lvalue() & {} KEEP void rvalue() && {} KEEP void both() const volatile {} };
KEEP void use_refq(RefQualified r) { r.lvalue(); static_cast<RefQualified &&>(r).rvalue(); r.both(); }
KEEP void strings(std::string, std::allocator<char>, std::basic_string<wchar_t>) {}

// operators
struct Number { int v;
  KEEP Number operator+(Number) const { return *this; } KEEP Number operator-() const { return *this; } KEEP bool operator<(Number) const { return 0; }
  KEEP bool operator>>(Number) const { return 0; } KEEP int operator()(int, int) { return 0; } KEEP int operator[](int) { return 0; } KEEP Number *operator->() { return this; }
  KEEP Number &operator++() { return *this; } KEEP Number operator++(int) { return *this; } KEEP Number &operator+=(int) { return *this; } KEEP bool operator!() { return 0; }
  KEEP explicit operator bool() const { return 0; } KEEP operator const char *() const { return 0; } KEEP int operator,(int) { return 0; } KEEP int operator&&(int) { return 0; }
  KEEP static void *operator new(size_t) { return 0; } KEEP static void operator delete[](void *) {} KEEP bool operator==(Number) const { return 1; }
  template <class T> KEEP operator T *() const { return nullptr; } template <class T> KEEP bool operator<(T) const { return 0; }
  KEEP int operator->*(int) { return 0; } KEEP int operator<=>(int) const { return 0; } };
KEEP long double operator""_deg(long double d) { return d; }
KEEP void use_number(Number n) { (void)(n+n); -n; n<n; n>>n; n(1,2); n[0]; n->v; ++n; n++; n+=1; !n; (bool)n; (const char*)n; (n,1); n&&1; new Number; (int*)n; (Plain*)n; n<1; n->*1; n<=>1; n==n; 1.0_deg; }

// templates
template <class T> struct Box { T value; template <class U> KEEP U as(U u) { return u; } struct Inner { KEEP void go(T, Inner *) {} }; };
template <class T> KEEP T identity(T t) { return t; }
template <int N> KEEP int number() { return N; }
template <unsigned long N, bool B, char C> KEEP void values() {}
template <Colour C> KEEP void enumerated() {}
template <auto V> KEEP void automatic() {}
template <template <class> class Holder, class T> KEEP Holder<T> held(T t) { return Holder<T>(); }
template <class... T> KEEP int count(T... t) { return sizeof...(t); }
template <class... T> KEEP void references_to(const T &...) {}
template <class... T> KEEP void functions_of(T (*...f)(int)) {}
template <class A, class... B> KEEP void nested_pack(Box<Box<B>> *..., A) {}
template <class... T> struct Tuple {};
template <class... A, class... B> KEEP void two(Tuple<A...>, Tuple<B...>) {}
template <int Plain::*M> KEEP void by_member() {}
template <int (*F)(int)> KEEP int by_function() { return F(1); }
template <const Plain &R> KEEP void by_reference() {}
KEEP int one_argument(int x) { return x; }
Plain global_plain;
struct Literal { int a; double b; };
template <Literal L> KEEP void by_object() {}
template <double D> KEEP void by_double() {}
KEEP void instantiate() {
  Box<int> b; b.as(1.0f); b.as(Box<Plain>()); Box<int>::Inner().go(1, nullptr); Box<Box<const char *>> bb; (void)bb;
  identity(1); identity(&b); identity<const int &>(3); identity<int (*)(char)>(nullptr); identity(Colour::red); number<3>(); number<-7>();
  values<4, true, 'a'>(); enumerated<Colour::green>(); enumerated<(Colour)7>(); automatic<5>(); automatic<&one_argument>(); automatic<nullptr>(); held<Box>(1);
  count(); count(1, 2.0, 'c'); references_to(1, b); functions_of<int, char>(nullptr, nullptr); nested_pack<int, char, float>(nullptr, nullptr, 1); nested_pack<int>(1);
  two(Tuple<int, char>(), Tuple<>()); by_member<&Plain::member>(); by_function<one_argument>(); by_reference<global_plain>(); by_object<Literal{1, 2.5}>(); by_double<1.5>();
}

// expressions in signatures
template <class T> KEEP auto added(T a, T b) -> decltype(a + b * 2) { return a; }
template <class T> KEEP auto called(T f) -> decltype(f(1, 'x')) { return f(1, 'x'); }
template <class T> KEEP auto of_member(T t) -> decltype(t.method(1)) { return 0; }
template <class T> KEEP auto of_arrow(T *t) -> decltype(t->member) { return 0; }
template <class T> KEEP auto conditional(T t) -> decltype(t ? t : T(0)) { return t; }
template <class T> KEEP auto casts(T t) -> decltype(static_cast<long>(t) + (int)t) { return 0; }
template <class T> KEEP auto braces(T t) -> decltype(Box<T>{}, T{t}) { return t; }
template <class T> KEEP char (*sized(T t))[sizeof(T) + 1] { return nullptr; }
template <class T> KEEP auto nested_name(T t) -> typename T::type { return {}; }
template <class T> KEEP void no_except(T t) noexcept(noexcept(t + 1)) {}
template <int N> struct Int {};
template <int A, int B> KEEP Int<A + B> sum(Int<A>, Int<B>) { return {}; }
template <int A, int B> KEEP Int<(A > B)> greater(Int<A>, Int<B>) { return {}; }
template <int A> KEEP Int<(A >> 1) - -A> shifted(Int<A>) { return {}; }
template <class... T> KEEP auto folded(T... t) -> decltype((t + ... + 0)) { return 0; }
template <class... T> KEEP auto folded_left(T... t) -> decltype((... && t)) { return 0; }
template <class... T> KEEP Int<sizeof...(T)> size_of_pack(T...) { return {}; }
template <class T> KEEP auto dependent(T t) -> decltype(T::shared + T::template deep<int>(t)) { return 0; }
template <class T> KEEP auto freed(T t) -> decltype(new T(t), delete &t, 0) { return 0; }
template <class T> KEEP auto global(T t) -> decltype(::names::identity(t)) { return t; }
template <class T> KEEP auto indexed(T t) -> decltype(t[0], *t, &t, !t, ~0, t + 1) { return t + 1; }
template <class T, int (*)[sizeof(T)] = nullptr> KEEP void defaulted(T) {}
template <class T> KEEP auto type_id(T t) -> decltype(alignof(T) + sizeof t) { return 1; }
template <class T> KEEP auto destroyed(T t) -> decltype(t.~T()) {}
struct Deep { static int shared; typedef int type; template <class U> static int deep(Deep) { return 1; } int method(int); int member; };
KEEP int takes(int, char) { return 1; }
KEEP void expressions() { int i = 1; int *p = &i; Deep d; added(1, 2); called(&takes); of_member(d); of_arrow(&d); conditional(1); casts(1); braces(1); sized(1); nested_name(d); no_except(1);
  sum(Int<1>(), Int<2>()); greater(Int<1>(), Int<2>()); shifted(Int<4>()); folded(1, 2); folded_left(true, false); size_of_pack(1, 'c'); dependent(d); global(1); indexed(p); defaulted(1); type_id(1); destroyed(Deep()); freed(1); }

// lambdas, locals, unnamed types
template <class F> KEEP auto run(F f) { return f(); }
template <class F> KEEP auto run1(F f) { return f(1); }
template <class F, class G> KEEP auto run2(F f, G g) { return f(1, g); }
KEEP inline int lambdas() { static int kept = takes(1, 'c'); auto l = [](int a, auto b) { return a; };
  struct Local { KEEP int method() { return kept; } struct Deeper { KEEP int again(Local) { return 1; } }; };
  run([] { return 1; }); run([] { return 2; }); run1([](auto x) { return x; }); run1([]<class T>(T x) { return x; }); run2(l, Local()); run1([](auto... x) { return sizeof...(x); });
  run([] { return run([] { struct In {}; return run1([](auto) { return In(); }), 1; }); });
  return Local().method() + Local::Deeper().again(Local()); }
inline auto at_namespace = [](int x) { return run([x] { return x; }); };
struct { KEEP int method() { return 1; } } unnamed; 
struct Holder { KEEP int defaulted(int x = run([] { return 5; })) { return x; } int field = run([] { return 6; }); };
KEEP int use_lambdas() { return lambdas() + at_namespace(1) + unnamed.method() + Holder().defaulted(); }
template <class T> KEEP int generic_local(T) { struct In { KEEP T method(T t) { return t; } }; return In().method(1), run([] { return 1; }); }
KEEP int use_generic_local() { return generic_local(1) + generic_local(1.5); }
KEEP inline const char *discriminated() { { static int x = takes(1,'c'); x++; } { static int x = takes(2,'c'); x++; } return ""; }
KEEP const char *use_discriminated() { return discriminated(); }

// inheritance: thunks, vtables, typeinfo, construction vtables
struct A { virtual ~A(); virtual int a(); int x; };
struct B { virtual ~B(); virtual B *b(); int y; };
struct C : A, B { ~C(); int a(); C *b(); };
struct V : virtual A { ~V(); int a(); };
struct W : V, virtual B { ~W(); C *b(); };
A::~A() {} int A::a() { return 1; } B::~B() {} B *B::b() { return this; } C::~C() {} int C::a() { return 2; } C *C::b() { return this; }
V::~V() {} int V::a() { return 3; } W::~W() {} C *W::b() { return nullptr; }
struct Derived : Number { using Number::Number; KEEP Derived(int) {} }; KEEP void derive() { Derived d(1); }
thread_local Box<int> per_thread; KEEP Box<int> &use_thread() { return per_thread; }
const Plain &extended = Plain{1};
KEEP int extend() { return extended.member; }
__attribute__((abi_tag("tagged"))) KEEP int with_tag() { return 1; }
struct __attribute__((abi_tag("x", "y"))) Tagged { KEEP int method() { return 1; } }; KEEP int use_tagged(Tagged t) { return t.method(); }
__attribute__((enable_if(1, ""))) KEEP int enabled(int) { return 1; }
KEEP int blocks() { auto [p, q] = Literal{1, 2}; int (^block)(int) = ^(int x) { int (^inner)() = ^{ return x; }; return inner(); }; return block(p); }
static auto [bound_one, bound_two] = Literal{3, 4}; KEEP int use_bound() { return bound_one; }

// concepts
template <class T> concept Small = sizeof(T) < 16;
template <class T, class U> concept Same = __is_same(T, U);
template <class T> requires Small<T> KEEP void constrained(T) {}
template <Small T> KEEP void constrained_parameter(T) {}
KEEP void constrained_auto(Small auto) {}
template <class T> KEEP void trailing(T) requires (Small<T> && !Same<T, char>) {}
template <class T> requires requires(T t) { t + 1; typename Box<T>; { t * 2 } noexcept -> Same<T>; requires Small<T>; } KEEP void required(T) {}
template <class T> struct Friendly { friend void befriended(Friendly) requires Small<T> {} };
KEEP void concepts() { constrained(1); constrained_parameter(1); constrained_auto(1); trailing(1); required(1); befriended(Friendly<int>()); run1([]<Small T>(T x) requires Same<T, int> { return x; }); run1([]<template <class> class H = Box, int N = 3>(auto x) { return x; }); }
struct Explicit { KEEP int with_this(this Explicit self, int) { return 1; } template <class S> KEEP int deduced(this S &&s) { return 2; } }; KEEP int use_explicit() { Explicit e; return e.with_this(1) + e.deduced(); }
}
// what LLVM 19 misreads or cannot read
namespace later {
template <class T> concept Small = sizeof(T) < 64;
template <class A, class B> concept Same = __is_same(A, B);

// template parameters in substitutions stand for those of the template that they are used in
template <class T> struct Update { T value; };
template <class T> struct Wrap { T call; };
template <class I, class C> KEEP void sort(I, I, C) {}
template <class I, class C> KEEP void sort_updates(Update<I> *, Update<I> *, C) {}
template <class T> KEEP void legalize(Update<T> *u) {
  auto compare = [](const Update<T> &, const Update<T> &) { return true; };
  sort(u, u, Wrap<decltype(compare)>{compare});
  sort_updates<Update<T> *>(nullptr, nullptr, Wrap<decltype(compare)>{compare});
}
template void legalize<char *>(Update<char *> *);
template <class T> KEEP void generic(T t) { auto own = [](auto x, T) { return x; }; own(1.5, t); }
template void generic<int>(int);
struct Outer { template <class F> struct Prepared { KEEP Prepared(F &) { auto run = [](F &f) { f(); }; run(*(F *)0); } }; };
template <class F> KEEP void call(F &&f) { auto own = [&] { f(); }; Outer::Prepared<decltype(own)> p(own); }
template void call<void (&)()>(void (&)());

// constraints count the levels of all templates around
template <class T> struct Member {
  template <class U> KEEP void both(U) requires(Same<T, int> && Small<U>) {}
  template <Same<T> U> KEEP void typed(U) {}
  KEEP void one() requires Small<T> {}
  template <class U> requires(Small<T> && Small<U>) friend KEEP void befriend(Member, U) {}
};
KEEP void members_of_templates() { Member<int> m; m.both('c'); m.typed(1); m.one(); befriend(m, 'c'); }
template <class T> KEEP void constrained_lambda() { auto one = []<class U>(U, auto) requires(Small<T> && Small<U>) {}; one(1, 'c'); }
template KEEP void constrained_lambda<long>();

// declarations of template parameters
template <class T, auto V> struct Typed {};
template <template <typename T, T> typename> struct Holder {};
template <template <class T, auto V> class X> KEEP void of_template() {}
template <template <class T, T V> class... X> KEEP void of_templates() {}
template <class T, T V> struct Valued {};
KEEP void declared() { of_template<Typed>(); of_templates<Valued, Valued>(); }

// objects and values
struct Text { char text[8]; };
template <Text T> KEEP void text() {}
KEEP void texts() { text<Text{"Hello"}>(); text<Text{"\0012\xF0\x9F\x98\x8A"}>(); text<Text{"\"\\\n"}>(); }
template <bool> struct If {};
template <int N> KEEP void comma(If<(N, true)> *) {}
template void comma<4>(If<true> *);
KEEP inline int counter() { static const int &r = 1; return r; }
KEEP int use_counter() { return counter(); }
KEEP void spaces(__attribute__((address_space(1))) const int *, __attribute__((address_space(1))) const int *) {}
KEEP void bits(_BitInt(12), _BitInt(12) *, _BitInt(12) *, int *, int *) {}
KEEP void halves(_Float16, _Float16 *, _Float16 *, int *, int *) {}
struct Convertible {
  template <class... T> KEEP operator Update<void (*)(T *...)>() const { return {}; } };
KEEP void converted() { Update<void (*)(int *, char *)> u = Convertible(); (void)u; }
}
