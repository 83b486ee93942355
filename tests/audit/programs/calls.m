// Calls of watched APIs, and what looks like them. Above each function: the rules that it calls,
// and the number of call sites of each; `none` for a function that calls none.

typedef signed char BOOL;
typedef struct objc_selector *SEL;
typedef struct objc_class *Class;
#define NULL ((void *)0)

__attribute__((objc_root_class)) @interface NSObject
+ (instancetype)alloc;
- (instancetype)init;
- (id)performSelector:(SEL)selector;
- (id)valueForKey:(id)key;
@end
@interface NSString : NSObject
@end
@interface NSConstantString : NSString
@end
@interface NSProcessInfo : NSObject
+ (NSProcessInfo *)processInfo;
- (double)systemUptime;
- (id)environment;
@end
@interface UIDevice : NSObject
+ (UIDevice *)currentDevice;
- (id)identifierForVendor;
- (id)name;
@end
@interface NSUserDefaults : NSObject
+ (NSUserDefaults *)standardUserDefaults;
- (instancetype)initWithSuiteName:(id)name;
- (id)objectForKey:(id)key;
@end
@interface NSURL : NSObject
- (BOOL)getResourceValue:(id *)value forKey:(id)key error:(id *)error;
@end
extern NSString *const NSURLCreationDateKey;
extern NSString *const NSFileSystemFreeSize;
extern Class NSClassFromString(NSString *name);
extern SEL NSSelectorFromString(NSString *name);

struct stat { char bytes[256]; };
extern int stat(const char *path, struct stat *buffer);
extern int fstat(int file, struct stat *buffer);
extern unsigned long long mach_absolute_time(void);
extern void *dlsym(void *handle, const char *name);
extern int printf(const char *format, ...);

static int counted;
#define TRUTH __attribute__((noinline, used))

// stat 1
TRUTH int call_stat(const char *path) { struct stat s; return stat(path, &s) + s.bytes[3]; }

// stat 2, fstat 1
TRUTH int call_three(const char *path) {
    struct stat s;
    int result = stat(path, &s);
#pragma clang loop unroll(disable)
    for (int i = 0; i < result; i++) counted += fstat(i, &s);
    if (counted > 7) return stat("/", &s);
    return counted;
}

// mach_absolute_time 1
TRUTH unsigned long long leave_by_jump(void) { return mach_absolute_time(); }

// stat 1
TRUTH int by_pointer(int which, const char *path) {
    struct stat s;
    int (*volatile function)(const char *, struct stat *) = stat;
    return which ? function(path, &s) : 3;
}

// none
TRUTH int own_fstatus(int file) { counted += file; return printf("fstat %d\n", counted); }

// none
TRUTH int mention(void) { return printf("systemUptime identifierForVendor stat\n"); }

@interface Clock : NSObject
- (double)systemUptime;
- (double)twice;
+ (id)identifierForVendor;
@end
@implementation Clock
// none
- (double)systemUptime { return counted * 0.25; }
// none
- (double)twice { return [self systemUptime] * 2; }
// none
+ (id)identifierForVendor { return 0; }
@end

// none
TRUTH double own_method(void) { Clock *clock = [[Clock alloc] init]; return [clock systemUptime]; }

// none
TRUTH id own_class_method(void) { return [Clock identifierForVendor]; }

// -[NSProcessInfo systemUptime] 1
TRUTH double uptime(void) { return [[NSProcessInfo processInfo] systemUptime]; }

// -[NSProcessInfo systemUptime] 1
TRUTH double both_uptimes(Clock *clock) {
    double mine = [[[Clock alloc] init] systemUptime];
    return mine + [[NSProcessInfo processInfo] systemUptime];
}

// -[NSProcessInfo systemUptime] 2
TRUTH double in_branches(int which) {
    NSProcessInfo *info = [NSProcessInfo processInfo];
    if (which > 3) { counted++; return [info systemUptime]; }
#pragma clang loop unroll(disable)
    for (int i = 0; i < which; i++) counted += (int)[info systemUptime];
    return counted;
}

// -[UIDevice identifierForVendor] 1
TRUTH id vendor(void) { return [[UIDevice currentDevice] identifierForVendor]; }

// -[UIDevice identifierForVendor] 1, -[UIDevice name] 1
TRUTH int device(void) {
    UIDevice *device = [UIDevice currentDevice];
    return (int)(long)[device identifierForVendor] + (int)(long)[device name];
}

// +[NSUserDefaults standardUserDefaults] 1, -[NSUserDefaults objectForKey:] 1
TRUTH id defaults(void) { return [[NSUserDefaults standardUserDefaults] objectForKey:@"x"]; }

// -[NSUserDefaults initWithSuiteName:] 1
TRUTH id suite(void) { return [[NSUserDefaults alloc] initWithSuiteName:@"group"]; }

@interface Settings : NSUserDefaults
- (id)kept;
@end
@implementation Settings
// -[NSUserDefaults objectForKey:] 1
- (id)kept { return [self objectForKey:@"kept"]; }
@end

// NSURLCreationDateKey 1
TRUTH BOOL creation(NSURL *url) {
    id value;
    return [url getResourceValue:&value forKey:NSURLCreationDateKey error:NULL];
}

// NSFileSystemFreeSize 1
TRUTH id constant(void) { return NSFileSystemFreeSize; }

// dlsym 1, mach_absolute_time 1
TRUTH void *looked_up(void) { return dlsym(NULL, "mach_absolute_time"); }

// -[UIDevice identifierForVendor] 1
TRUTH id reflected(void) {
    return [[UIDevice currentDevice] performSelector:NSSelectorFromString(@"identifierForVendor")];
}

// -[UIDevice identifierForVendor] 1
TRUTH id reflected_class(void) {
    return [[NSClassFromString(@"UIDevice") currentDevice] identifierForVendor];
}

// -[UIDevice identifierForVendor] 1
TRUTH id by_key(void) { return [[UIDevice currentDevice] valueForKey:@"identifierForVendor"]; }

// none
TRUTH int main(void) { return counted; }
