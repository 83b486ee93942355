/* Lua with its libraries, and callbacks from C into scripts and back. */
#include "check.h"

#include "lauxlib.h"
#include "lua.h"
#include "lualib.h"

static const char script[] = {
#embed "run_lua.lua"
    , 0};

static int apply(lua_State *state) {
    lua_Integer count = luaL_checkinteger(state, 2);
    for (lua_Integer i = 1; i <= count; i++) {
        lua_pushvalue(state, 1);
        lua_pushinteger(state, i);
        lua_call(state, 1, 1);
    }
    return (int)count;
}

int main(void) {
    lua_State *state = luaL_newstate();
    expect(state);
    luaL_openlibs(state);
    lua_register(state, "apply", apply);
    expect(luaL_loadbuffer(state, script, sizeof script - 1, "=script") == LUA_OK);
    expect(lua_pcall(state, 0, 1, 0) == LUA_OK);
    expect(lua_tointeger(state, -1) == 42);
    lua_close(state);
    leave();
}
