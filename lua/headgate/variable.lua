--- Reads variables of nginx in ways that LuaJIT compiles, and that do not hash a variable's name
-- anew for each request, as ngx.var does.
-- The function behind ngx.var ends in a tail call, which LuaJIT cannot compile when a trace starts
-- in it: after some attempts it is blacklisted, and with it whatever calls it (CPU per request 1.36
-- times static nginx instead of 1.16). So no function of the hot path ends in a call of a built-in.
local bit = require "bit"
local ffi = require "ffi"

local band, tonumber = bit.band, tonumber
local ffi_string = ffi.string

local _M = {}

-- ngx_str_t with the hash of what it holds; ngx_http_variable_value_t, whose first word has the
-- length in 28 bits and then four flags (LuaJIT compiles no access to bit-fields).
pcall(ffi.cdef, [[
typedef struct { size_t length; const char *text; uintptr_t hash; } headgate_name;
typedef struct { uint32_t bits; unsigned char *data; } headgate_value;
headgate_value *ngx_http_get_variable(void *request, headgate_name *name, uintptr_t hash);
uintptr_t ngx_hash_key(const char *text, size_t length);
intptr_t ngx_atoi(unsigned char *line, size_t n);
intptr_t ngx_atofp(unsigned char *line, size_t n, size_t point);
]])
local LENGTH, NOT_FOUND = 0x0fffffff, 0x40000000

-- $request_time and its like have as many.
local DECIMALS = 3

--- Read variables by ngx.var alone.
-- @tparam table var ngx.var
-- @treturn function function(name) gives the value, or nil
function _M.reader(var)
    return function(name)
        local value = var[name]
        return value
    end
end

--- Read variables from nginx itself. The first read of each name is compared with that of ngx.var:
-- in an nginx whose values look otherwise, that one is used for ever.
-- @tparam table o var: ngx.var; get_request: of resty.core.base; nginx: its functions (ffi.C)
-- @treturn table functions of the name of a variable, in lower case: get gives the value, or nil;
--   whole a whole number, seconds those of a time like "0.012", both nil when it holds none; filled
--   tells whether it holds anything. A number is read without making a string of Lua: to intern and
--   collect those that differ from request to request costs more than all else that counts one.
function _M.open(o)
    local var, get_request, C = o.var, o.get_request, o.nginx
    -- Lua keeps a text as long as its name is here.
    local names, alike = {}, true

    local function value_of(name)
        local value = C.ngx_http_get_variable(get_request(), name, name.hash)
        if value ~= nil and band(value.bits, NOT_FOUND) == 0 then
            return value
        end
    end

    local function is_alike(text, name)
        local value = value_of(name)
        local read = value and ffi_string(value.data, band(value.bits, LENGTH)) or nil
        return read == var[text]
    end

    local function meet(text)
        local name = ffi.new("headgate_name")
        name.length, name.text, name.hash = #text, text, C.ngx_hash_key(text, #text)
        names[text] = name
        -- Other workers may change what is counted between two reads ($connections_active).
        alike = alike and (is_alike(text, name) or is_alike(text, name) or is_alike(text, name))
        return name
    end

    local function get(text)
        local name = names[text] or meet(text)
        if not alike then
            local value = var[text]
            return value
        end
        local value = value_of(name)
        if value then
            local read = ffi_string(value.data, band(value.bits, LENGTH))
            return read
        end
        return nil -- and not nothing: tonumber(get(name)) wants a value
    end

    local function whole(text)
        local name = names[text] or meet(text)
        if not alike then
            local n = tonumber(var[text])
            return n
        end
        local value = value_of(name)
        local n = value and tonumber(C.ngx_atoi(value.data, band(value.bits, LENGTH))) or -1
        if n >= 0 then
            return n
        end
        return nil
    end

    local function seconds(text)
        local name = names[text] or meet(text)
        if not alike then
            local n = tonumber(var[text])
            return n
        end
        local value = value_of(name)
        local n = value
            and tonumber(C.ngx_atofp(value.data, band(value.bits, LENGTH), DECIMALS)) or -1
        if n >= 0 then
            return n / 1000
        end
        return nil
    end

    local function filled(text)
        local name = names[text] or meet(text)
        if not alike then
            return (var[text] or "") ~= ""
        end
        local value = value_of(name)
        return value ~= nil and band(value.bits, LENGTH) > 0
    end

    return { get = get, whole = whole, seconds = seconds, filled = filled }
end

return _M
