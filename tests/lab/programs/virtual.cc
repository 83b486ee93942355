// C++ without its library: virtual calls, constructors and destructors, templates, thunks.
extern "C" {
#include "lab.h"
}

inline void *operator new(size_t, void *place) { return place; }
void operator delete(void *) noexcept {}
void operator delete(void *, size_t) noexcept {}
extern "C" void __cxa_pure_virtual() { leave(); }

namespace {

FUNCTION uint64_t work(uint64_t a) { return a * 5 + 3; }
uint64_t alive;

struct Counted {
    FUNCTION Counted(uint64_t n) : value(work(n)) { alive += value; }
    FUNCTION ~Counted() { alive -= work(value); }
    uint64_t value;
};

struct Shape {
    virtual ~Shape() { alive += work(1); }
    virtual uint64_t area(uint64_t scale) const = 0;
    virtual uint64_t doubled(uint64_t scale) const { return 2 * area(scale); }
};

struct Named {
    virtual ~Named() {}
    virtual uint64_t name() const { return work(9); }
};

struct Square : Shape {
    explicit Square(uint64_t s) : side(s) {}
    uint64_t area(uint64_t scale) const override { return work(side * side) * scale; }
    uint64_t side;
};

// Its second base is called through a thunk, which moves `this` and jumps.
struct Circle : Shape, Named {
    explicit Circle(uint64_t r) : radius(r) {}
    uint64_t area(uint64_t scale) const override { return 3 * radius.value + work(scale); }
    uint64_t doubled(uint64_t scale) const override { return Shape::doubled(scale) + name(); }
    uint64_t name() const override { return work(radius.value) + work(2); }
    Counted radius;
};

template <typename Function>
FUNCTION uint64_t repeated(uint64_t times, Function function) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < times; i++) {
        Counted each(i);
        sum += function(i) + each.value;
    }
    return sum;
}

struct Unwinds {
    Counted first, second;
    uint64_t parts[4];
    FUNCTION Unwinds(uint64_t n) : first(n), second(n + 1) {
        for (uint64_t i = 0; i < 4; i++) {
            parts[i] = work(n + i);
        }
    }
};

FUNCTION uint64_t uses(const Shape &shape, const Named &named, uint64_t scale) {
    Unwinds local(scale);
    return shape.area(scale) + shape.doubled(scale) + named.name() + local.parts[scale % 4];
}

FUNCTION uint64_t sums(Shape *const *shapes, uint64_t count) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum += shapes[i]->doubled(i + 1);
    }
    return sum;
}

typedef uint64_t (Shape::*Member)(uint64_t) const;

FUNCTION uint64_t by_pointer(const Shape &shape, Member member) { return (shape.*member)(4) + 1; }

}  // namespace

extern "C" int main() {
    alignas(16) static uint8_t memory[64];
    Square square(opaque(4));
    Shape *circle = new (memory) Circle(opaque(3));
    Shape *shapes[] = {&square, circle};
    uint64_t sum = sums(shapes, opaque(2)) + uses(square, *static_cast<Circle *>(circle), 3);
    sum += repeated(opaque(3), [&](uint64_t i) { return work(i + sum); });
    sum += by_pointer(square, &Shape::area) + by_pointer(*circle, &Shape::doubled);
    circle->~Shape();
    return (int)(sum + alive);
}
