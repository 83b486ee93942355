inline void *operator new(unsigned long, void *p) noexcept { return p; }
struct Shape { virtual ~Shape(); virtual int area(); virtual int sides() = 0; int x; };
struct Named { virtual ~Named(); virtual const char *name(); int y; };
struct Square : Shape { ~Square(); int sides() override; virtual int extra(); };
struct Label : Square, Named { ~Label(); const char *name() override; int area() override; };
struct Lazy : virtual Shape { ~Lazy(); int sides() override; };
namespace { struct Hidden : Square { int extra() override; }; }
template <class T> struct Box { virtual T take(T t) { return t + (T)3; } virtual void put() {} };
void operator delete(void *) noexcept;
Shape::~Shape() { x = 1; } int Shape::area() { return 11; }
Named::~Named() { y = 2; } const char *Named::name() { return "named"; }
Square::~Square() { x = 3; } int Square::sides() { return 4; } int Square::extra() { return 5; }
Label::~Label() { x = 6; } const char *Label::name() { return "label"; } int Label::area() { return 7; }
Lazy::~Lazy() { x = 8; } int Lazy::sides() { return 9; }
int Hidden::extra() { return 10; }
Square *make() { static char place[64]; return new (place) Hidden(); }
Box<int> box_of_int; Box<long> *box() { static Box<long> b; return &b; }
struct Guard { virtual int begin() = 0; virtual int query() { return 12; } };
struct Fake : Guard { int begin() override; };
int Fake::begin() { return 13; }
struct Common { virtual int begin() = 0; virtual int query() { return 14; } };
struct First : Common { int begin() override; };
struct Second : Common { int begin() override; };
int First::begin() { return 15; } int Second::begin() { return 16; }
struct Empty {};
struct Oval : Empty, Shape { int sides() override; };
int Oval::sides() { return 17; }
