--- What a consistent hash hashes of a request: literals and variables of nginx, joined.
local concat, gsub, ipairs = table.concat, string.gsub, ipairs

local _M = {}
local mt = { __index = _M }

-- How nginx names what the parts name.
local VARIABLES = {
    variable = function(name) return name end,
    header = function(name) return "http_" .. gsub(name, "-", "_") end,
    cookie = function(name) return "cookie_" .. name end,
    argument = function(name) return "arg_" .. name end,
}

--- @tparam table parts list of {kind, name}: "literal", "variable", "header", "cookie", "argument"
-- @tparam function get function(name) of variable.reader()
-- @treturn table with read(); an error for a kind that is not known
function _M.new(parts, get)
    local self = { get = get, count = #parts, literals = {}, variables = {}, values = {} }
    for i, part in ipairs(parts) do
        local kind, name = part[1], part[2]
        if kind == "literal" then
            self.literals[i] = name
        else
            local variable = VARIABLES[kind] or error("a hash of an unknown kind")
            self.variables[i] = variable(name)
        end
    end
    return setmetatable(self, mt)
end

--- Read the key of the present request.
-- @treturn string|nil nil when the request has none of the values
function _M:read()
    local get, values, found = self.get, self.values, false
    for i = 1, self.count do
        local variable = self.variables[i]
        if variable then
            local value = get(variable) or ""
            found = found or value ~= ""
            values[i] = value
        else
            values[i] = self.literals[i]
        end
    end
    if not found then
        return nil
    end
    return self.count == 1 and values[1] or concat(values, "", 1, self.count)
end

return _M
