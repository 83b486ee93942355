/* The main thread: an application whose view controller computes too long in viewDidLoad. */
#include "objects.h"
#include "runloop.h"
#include "threads.h"

@interface UIViewController : NSObject {
    char _viewLoaded;
}
- (void)loadViewIfRequired;
- (void)viewDidLoad;
@end

@implementation UIViewController

- (void)loadViewIfRequired {
    if (_viewLoaded) return;
    _viewLoaded = 1;
    [self viewDidLoad];
    _viewLoaded = 2;
}

- (void)viewDidLoad {
}

@end

@interface ViewController : UIViewController {
    volatile int _result;
    volatile int _limit;
}
- (int)test1:(int)a;
- (int)test2:(int)a b:(int)b;
@end

OUTLINED static int scramble(int value) {
    return value * 1103515245 + 12345;
}

@implementation ViewController

- (void)viewDidLoad {
    [super viewDidLoad];
    int res = [self test1:1];
    _result = res;
}

- (int)test1:(int)a {
    int res = [self test2:a b:2];
    return res + a;
}

/* Called scramble() by the time it is looked at: the link register then points into this very
   method, and is nobody's return address. */
- (int)test2:(int)a b:(int)b {
    int res = a + b;
    while (_limit == 0) {
        res = scramble(res);
        _result = res;
    }
    return res;
}

@end

@interface AppDelegate : NSObject
- (char)application:(id)application didFinishLaunchingWithOptions:(id)options;
@end

@implementation AppDelegate

- (char)application:(id)application didFinishLaunchingWithOptions:(id)options {
    start_threads();
    return 1;
}

@end

static void _UIApplicationShowFirstScene(void *information) {
    [(__bridge ViewController *)information loadViewIfRequired];
    NOT_A_TAIL_CALL;
}

OUTLINED int UIApplicationMain(AppDelegate *delegate) {
    [delegate application:0 didFinishLaunchingWithOptions:0];
    CFRunLoopSource0 scene = {_UIApplicationShowFirstScene, (__bridge void *)[ViewController new]};
    CFRunLoop loop = {.signalled = &scene, .wakeup = mach_reply_port()};
    return CFRunLoopRunSpecific(&loop, "kCFRunLoopDefaultMode");
}

int main(void) {
    pthread_setname_np("main");
    int status = UIApplicationMain([AppDelegate new]);
    _exit(status);
}
