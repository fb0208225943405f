--- Builds the path and query that a rewriting route sends to its peer.
local concat, find, sub, type = table.concat, string.find, string.sub, type

local _M = {}

--- Put a rewrite together. The first "?" of a literal starts the query; a "?" in a capture is data.
-- @tparam table parts literals, and numbers of groups
-- @tparam table captures of the route's regex; a group that took no part is "" (or false)
-- @tparam function escape_argument escapes a capture for use in a query
-- @treturn string path, decoded, always starting with "/"
-- @treturn string|nil query, ready to be sent; nil when the rewrite has none
function _M.build(parts, captures, escape_argument)
    local path, query = {}, nil
    for _, part in ipairs(parts) do
        if type(part) == "number" then
            local value = captures and captures[part] or ""
            if query then
                query[#query + 1] = escape_argument(value)
            else
                path[#path + 1] = value
            end
        elseif query then
            query[#query + 1] = part
        else
            local mark = find(part, "?", 1, true)
            if mark then
                path[#path + 1] = sub(part, 1, mark - 1)
                query = { sub(part, mark + 1) }
            else
                path[#path + 1] = part
            end
        end
    end
    local result = concat(path)
    if sub(result, 1, 1) ~= "/" then
        result = "/" .. result
    end
    return result, query and concat(query)
end

--- Join the query of a rewrite and that of the request, as nginx's rewrite does.
function _M.join_query(query, args)
    if not args or args == "" then
        return query
    end
    if query == "" then
        return args
    end
    return query .. "&" .. args
end

return _M
