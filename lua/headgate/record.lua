--- Records: the steps of a push, on the control socket and in the state log.
-- A record is op:u8 keyLength:u16 valueLength:u32 key value, big-endian.
local byte, sub = string.byte, string.sub

local _M = {
    BODY = "B",
    POINTER = "P",
    REVISION = "R",
    DELETE = "D",
    DROP = "X",
    -- The key of the body record that starts each push of the state log.
    SCHEMA_KEY = "schema",
    MAX_VALUE_BYTES = 1048576,
}

local HEADER_BYTES = 7
local KNOWN = { B = true, P = true, R = true, D = true, X = true }

--- Read a big-endian number of 32 bits.
-- @tparam string s
-- @tparam number at position of its first byte, from 1; the four bytes must be there
-- @treturn number
function _M.u32(s, at)
    local a, b, c, d = byte(s, at, at + 3)
    return ((a * 256 + b) * 256 + c) * 256 + d
end

--- Read one record.
-- @tparam string s
-- @tparam number at where it starts, from 1
-- @treturn[1] string operation, one of the constants of this module
-- @treturn[1] string key
-- @treturn[1] string value
-- @treturn[1] number where the next record starts
-- @treturn[2] nil
-- @treturn[2] string what is wrong
function _M.parse(s, at)
    if #s - at + 1 < HEADER_BYTES then
        return nil, "record is cut short"
    end
    local op = sub(s, at, at)
    if not KNOWN[op] then
        return nil, "unknown operation"
    end
    local high, low = byte(s, at + 1, at + 2)
    local key_bytes = high * 256 + low
    local value_bytes = _M.u32(s, at + 3)
    if value_bytes > _M.MAX_VALUE_BYTES then
        return nil, "value is too long"
    end
    local key_at = at + HEADER_BYTES
    local value_at = key_at + key_bytes
    local next_at = value_at + value_bytes
    if next_at > #s + 1 then
        return nil, "record is cut short"
    end
    return op, sub(s, key_at, value_at - 1), sub(s, value_at, next_at - 1), next_at
end

return _M
