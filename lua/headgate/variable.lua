--- Reads variables of nginx in ways that LuaJIT compiles.
-- The function behind ngx.var ends in a tail call, which LuaJIT cannot compile when a trace starts
-- in it: after some attempts it is blacklisted, and with it whatever calls it (CPU per request 1.36
-- times static nginx instead of 1.16). A trace that starts here has it inside.
local ffi = require "ffi"

local C, tonumber = ffi.C, tonumber

local _M = {}

--- @tparam table var ngx.var
-- @treturn function function(name) gives the value, or nil
function _M.reader(var)
    return function(name)
        local value = var[name]
        return value
    end
end

-- ngx_string.h: NGX_ERROR for what is no number of that form.
pcall(ffi.cdef, [[
intptr_t ngx_atoi(unsigned char *line, size_t n);
intptr_t ngx_atofp(unsigned char *line, size_t n, size_t point);
]])

-- $request_time and its like have as many.
local DECIMALS = 3
local MAX_NAME_BYTES = 64

--- Read numbers without making a string of Lua for each: to intern and collect those that differ
-- from request to request, as sizes and times do, costs more than all else that counts a request.
-- Calls the function that lies behind ngx.var (resty.core.var, which declares it).
-- @tparam table o get_request: of resty.core.base
-- @treturn table functions of the name of a variable: whole gives a whole number, seconds those of
--   a time like "0.012", both nil when it holds none; filled tells whether it holds anything
function _M.numbers(o)
    local get_request = o.get_request
    local value, length = ffi.new("unsigned char *[1]"), ffi.new("size_t[1]")
    local message, lower_case = ffi.new("char *[1]"), ffi.new("char[?]", MAX_NAME_BYTES)

    local function found(name)
        return C.ngx_http_lua_ffi_var_get(get_request(), name, #name, lower_case, 0, value, length,
            message) == 0
    end

    local function whole(name)
        if not found(name) then
            return nil
        end
        local n = tonumber(C.ngx_atoi(value[0], length[0]))
        if n >= 0 then
            return n
        end
    end

    local function seconds(name)
        if not found(name) then
            return nil
        end
        local n = tonumber(C.ngx_atofp(value[0], length[0], DECIMALS))
        if n >= 0 then
            return n / 1000
        end
    end

    local function filled(name)
        return found(name) and length[0] > 0
    end

    return { whole = whole, seconds = seconds, filled = filled }
end

return _M
