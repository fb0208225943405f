--- JSON lists: Lua's encoder cannot tell an empty list from an empty object.
local concat = table.concat

local _M = {}

--- @tparam table list of JSON texts
-- @treturn string
function _M.list(list)
    return "[" .. concat(list, ",") .. "]"
end

--- @tparam table values
-- @tparam function encode
-- @treturn string
function _M.encode_list(values, encode)
    local list = {}
    for i, v in ipairs(values) do
        list[i] = encode(v)
    end
    return _M.list(list)
end

return _M
