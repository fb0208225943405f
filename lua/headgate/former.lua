--- Workers of the load before answer on connections that they had taken when the configuration was
-- loaded anew. A host may then come to need profiles that only the new nginx.conf has: such a
-- worker goes on with the host as it knew it.
local find = string.find

local _M = {}

--- Do connections of a pool speak TLS? (model.Profile.Pool())
local function speaks_tls(pool)
    return pool ~= nil and (find(pool, "https", 1, true) or find(pool, "grpcs", 1, true)) ~= nil
end

--- Make a build function of state:kind("host") that keeps the host as it was when a later load
-- came into force, as the field before.
-- @tparam function build
-- @tparam function retired function() tells whether a later load is in force
-- @treturn function
function _M.keeping(build, retired)
    return function(decoded, name, previous)
        local host, err = build(decoded, name, previous)
        if host and previous and retired() then
            host.before = previous.before or previous
        end
        return host, err
    end
end

--- The route to go, where the worker lacks the profile of the one that is pushed.
-- @tparam table o router, profiles: those that nginx.conf holds
-- @tparam table before the host as it was
-- @tparam string path
-- @tparam table route of the host as it is, with a profile
-- @tparam table|nil captures
-- @treturn table the former route; the one given where its profile is there, or where the former
--   one cannot be gone: never in the clear to peers that are now spoken to over TLS
-- @treturn table|nil captures
function _M.route(o, before, path, route, captures)
    if o.profiles[route.profile] then
        return route, captures
    end
    local was, caught = o.router:match(before, path)
    if not was or was.profile and not o.profiles[was.profile]
        or speaks_tls(route.pool) and not speaks_tls(was.pool) then
        return route, captures
    end
    return was, caught
end

return _M
