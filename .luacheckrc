-- Lua as nginx runs it: LuaJIT plus the `ngx` table. The specs run under busted.
std = "ngx_lua"
max_line_length = 100
files["lua/spec"] = { std = "luajit+busted" }
