--- Decides about redirects to https and writes their Location.
local find, match, sub = string.find, string.match, string.sub

local _M = {}

--- Is a path exempt from redirects?
-- @tparam string path $uri
-- @tparam table|nil prefixes no-tls-redirect-locations
function _M.exempt(path, prefixes)
    for _, prefix in ipairs(prefixes or {}) do
        if sub(path, 1, #prefix) == prefix then
            return true
        end
    end
    return false
end

--- The name in a Host header, without its port; nil for one that may not stand in a Location.
function _M.name(host)
    return match(host, "^(%[[%x:.]+%])")
        or match(host, "^([%w._-]+)$")
        or match(host, "^([%w._-]+):%d*$")
end

--- @tparam table redirect of the route: status, keepSlash
-- @tparam string name of name()
-- @tparam string uri $request_uri: as the client sent it
-- @tparam number|nil port of https; nil for 443
function _M.location(redirect, name, uri, port)
    if not redirect.keepSlash and sub(uri, -1) == "/" and not find(uri, "?", 1, true) then
        uri = sub(uri, 1, -2)
    end
    return "https://" .. name .. (port and ":" .. port or "") .. uri
end

return _M
