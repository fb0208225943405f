--- Random bytes of the kernel.
local _M = {}

--- @tparam number n how many
-- @treturn string
function _M.bytes(n)
    local file = assert(io.open("/dev/urandom", "rb"))
    local bytes = assert(file:read(n))
    file:close()
    return bytes
end

return _M
