/* QuickJS with a script that calls C, which calls the script. */
#include "check.h"

#include "quickjs.h"

static const char script[] = {
#embed "run_quickjs.js"
    , 0};

static JSValue apply(JSContext *context, JSValueConst self, int count, JSValueConst *arguments) {
    int32_t times = 0;
    JS_ToInt32(context, &times, arguments[1]);
    double sum = 0;
    for (int32_t i = 1; i <= times; i++) {
        JSValue argument = JS_NewInt32(context, i);
        JSValue result = JS_Call(context, arguments[0], JS_UNDEFINED, 1, &argument);
        if (JS_IsException(result)) {
            return result;
        }
        double value = 0;
        JS_ToFloat64(context, &value, result);
        JS_FreeValue(context, result);
        sum += value;
    }
    return JS_NewFloat64(context, sum);
}

int main(void) {
    JSRuntime *runtime = JS_NewRuntime();
    expect(runtime);
    JS_SetMaxStackSize(runtime, 200 << 10);
    JSContext *context = JS_NewContext(runtime);
    JSValue global = JS_GetGlobalObject(context);
    JS_SetPropertyStr(context, global, "apply", JS_NewCFunction(context, apply, "apply", 2));
    JSValue result = JS_Eval(context, script, sizeof script - 1, "script", JS_EVAL_TYPE_GLOBAL);
    int32_t number = 0;
    if (JS_IsException(result)) {
        fail(JS_ToCString(context, JS_GetException(context)), __LINE__);
    }
    expect(!JS_ToInt32(context, &number, result) && number == 42);
    JSContext *other;
    while (JS_ExecutePendingJob(runtime, &other) > 0) {
    }
    JSValue settled = JS_GetPropertyStr(context, global, "settled");
    expect(!JS_ToInt32(context, &number, settled) && number == 7);
    JS_FreeValue(context, global);
    JS_FreeContext(context);
    JS_FreeRuntime(runtime);
    leave();
}
