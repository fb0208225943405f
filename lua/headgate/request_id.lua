--- Makes request IDs of 32 hexadecimal digits, as $request_id of nginx has them, for a tenth of its
-- price: nginx asks OpenSSL for 16 random bytes each time. The second half of an ID is the
-- worker's own; the first is a number that is counted up and mixed, so that no two are alike and
-- the digits are spread evenly.
local bit = require "bit"
local ffi = require "ffi"

local bxor, rshift = bit.bxor, bit.rshift

local _M = {}

pcall(ffi.cdef, "unsigned char *ngx_hex_dump(unsigned char *to, unsigned char *from, size_t n);")

local BYTES = 16
local NAME = "hg_id"
-- SplitMix64 (Steele, Lea, Flood 2014): each number of 64 bits stands for exactly one other.
local STEP = 0x9e3779b97f4a7c15ULL
local MIX1, MIX2 = 0xbf58476d1ce4e5b9ULL, 0x94d049bb133111ebULL

local function mix(n)
    n = bxor(n, rshift(n, 30)) * MIX1
    n = bxor(n, rshift(n, 27)) * MIX2
    n = bxor(n, rshift(n, 31)) -- not a tail call: see variable.lua
    return n
end
_M.mix = mix

--- @tparam table o get_request: of resty.core.base, after resty.core.var; nginx: its functions
--   (ffi.C)
-- @treturn table seed(bytes), to be called once by each worker with 16 random bytes; set(), gives
--   the request at hand an ID, in $hg_id
function _M.new(o)
    local get_request, C = o.get_request, o.nginx
    local count = ffi.new("uint64_t[1]")
    local id, digits = ffi.new("uint64_t[2]"), ffi.new("unsigned char[?]", 2 * BYTES)
    local raw = ffi.cast("unsigned char *", id)
    local lower_case, message = ffi.new("unsigned char[?]", #NAME), ffi.new("unsigned char[256]")
    local size = ffi.new("size_t[1]")

    local function seed(bytes)
        ffi.copy(id, bytes, BYTES)
        count[0] = id[0]
    end

    local function set()
        count[0] = count[0] + STEP
        id[0] = mix(count[0])
        C.ngx_hex_dump(digits, raw, BYTES)
        size[0] = 256
        -- What nginx cannot set stays empty, and its own ID is used.
        C.ngx_http_lua_ffi_var_set(get_request(), NAME, #NAME, lower_case, digits, 2 * BYTES,
            message, size)
    end

    return { seed = seed, set = set }
end

return _M
