--- Finds the route of a request: host exact, then one-label wildcard, then any host; path exact,
-- then the longest prefix by element, then regexes in order. Everything from objects is data here:
-- it is compared, or compiled as the one regex that it is.
local metrics = require "headgate.metrics"

local byte, find, sub = string.byte, string.find, string.sub
local concat, max, sort = table.concat, math.max, table.sort
local ipairs, pairs = ipairs, pairs

local _M = {}
local mt = { __index = _M }

local NONE = {}
local SLASH = byte("/")
-- Names of requests are chosen by clients: what is remembered of them is bounded.
local MAX_NAMES = 4096
local MAX_NAME_BYTES = 253
-- The fields of a pushed route that requests read, beside its backends and source.
local FIELDS = {
    "unavailable", "weights", "redirect", "rewrite", "policy", "maxBody", "profile", "pool",
    "cookiePath", "peerHost", "noLog",
}
-- anchored, case-insensitive, compiled by the JIT of PCRE, once.
_M.REGEX_OPTIONS = "aijo"

--- What requests need of a route, and no more: a host of the middling kind has five.
local function slim(name, decoded)
    local backends = not decoded.unavailable and decoded.backends or NONE
    local route = { label = metrics.label(name, decoded.source), backend = backends[1] }
    if #backends > 1 then
        route.backend, route.backends = nil, backends
    end
    for _, field in ipairs(FIELDS) do
        if decoded[field] ~= nil then
            route[field] = decoded[field]
        end
    end
    return route
end

local function equal(a, b)
    if a.label ~= b.label or a.backend ~= b.backend or a.backends or b.backends then
        return false
    end
    for i = 1, #FIELDS do
        local field = FIELDS[i]
        if a[field] ~= b[field] then
            return false
        end
    end
    return true
end

-- Only this many are looked through: a host may have thousands.
local LOOKED_AT = 32

--- @treturn number|nil where in a list an equal route stands
local function find_equal(routes, route)
    for i = #routes, max(1, #routes - LOOKED_AT + 1), -1 do
        if equal(routes[i], route) then
            return i
        end
    end
end

--- Put each of the different routes into a host once: paths of an Ingress mostly lead to one
-- place. (Redirects and rewrites are tables: those are never equal.)
-- @treturn table where each pushed route stands now, by its number
local function add_routes(host, decoded)
    local places = {}
    for i, pushed in ipairs(decoded.routes) do
        local route = slim(decoded.name, pushed)
        local place = find_equal(host, route)
        if not place then
            place = #host + 1
            host[place] = route
        end
        places[i] = place
    end
    return places
end

--- Replace the numbers of routes behind the paths of a decoded host.
local function renumber(decoded, places)
    for _, paths in ipairs({ decoded.exact or NONE, decoded.prefix or NONE }) do
        for path, n in pairs(paths) do
            paths[path] = places[n] or error("a path names a route that is missing")
        end
    end
    for _, r in ipairs(decoded.regex or NONE) do
        r[2] = places[r[2]] or error("a regex names a route that is missing")
    end
end

--- What leads to the routes of a host, by their places.
local function paths_of(decoded)
    return {
        exact = decoded.exact, prefix = decoded.prefix, lengths = decoded.lengths,
        regex = decoded.regex,
    }
end

-- Paths that several hosts have: most have nothing but "/", and what is made from one template has
-- the paths of the template.
local known_paths = setmetatable({}, { __mode = "v" })
-- More than these are not compared: nobody has them twice.
local MOST_SHARED = 32

--- The name of the paths of a host. It tells all of them, each with its length, so that no two have
-- the same.
-- @treturn string|nil nil: they are not to be shared
local function name_of(decoded)
    if decoded.regex then
        return nil
    end
    local parts = {}
    for kind, paths in pairs({ E = decoded.exact, P = decoded.prefix }) do
        for path, place in pairs(paths) do
            parts[#parts + 1] = kind .. place .. ":" .. #path .. ":" .. path
            if #parts > MOST_SHARED then
                return nil
            end
        end
    end
    sort(parts)
    return concat(decoded.lengths or NONE, ",") .. concat(parts)
end

local function shared_paths(decoded)
    local name = name_of(decoded)
    local paths = name and known_paths[name] or paths_of(decoded)
    if name then
        known_paths[name] = paths
    end
    return paths
end

--- Make the host that match reads from a decoded one: its routes in a list, its name, and paths.
-- The build function of state:kind("host").
function _M.build_host(decoded)
    local host = { name = decoded.name, paths = NONE }
    renumber(decoded, add_routes(host, decoded))
    host.paths = shared_paths(decoded)
    return host
end

--- Make a host whose routes are told apart and hold all that was pushed, for whom an answer is to
-- be explained. The build function of state:kind("host") likewise.
function _M.build_whole_host(decoded)
    local places = {}
    for i, route in ipairs(decoded.routes) do
        decoded[i], places[i] = route, i
        if not route.unavailable then
            route.backend = #route.backends == 1 and route.backends[1] or nil
        end
    end
    renumber(decoded, places)
    decoded.paths = paths_of(decoded)
    return decoded
end

--- @tparam table o hosts: state:kind("host", build_host); re_find, re_match: of ngx.re
function _M.new(o)
    return setmetatable({
        hosts = o.hosts, re_find = o.re_find, re_match = o.re_match,
        young = {}, old = {}, count = 0,
    }, mt)
end

local function lookup(self, name, stamp)
    local host, broken = self.hosts:get(name, stamp)
    if host or broken or name == "" then
        return host, broken
    end
    local dot = find(name, ".", 1, true)
    if dot and dot > 1 then
        host, broken = self.hosts:get("*" .. sub(name, dot), stamp)
        if host or broken then
            return host, broken
        end
    end
    return self.hosts:get("", stamp)
end

local function remember(self, name, found)
    if self.count >= MAX_NAMES then
        self.old, self.young, self.count = self.young, {}, 0
    end
    if not self.young[name] then
        self.count = self.count + 1
    end
    self.young[name] = found
end

--- Find the host that serves a name.
-- @tparam string name lower case, without port and trailing dot ($host)
-- @tparam number stamp of state:stamp()
-- @return[1] table the host
-- @return[2] nil, true when there is one that cannot be used
-- @return[3] nil when there is none
function _M:host(name, stamp)
    if #name > MAX_NAME_BYTES or byte(name) == 42 then -- "*": no client's name is a wildcard
        return self.hosts:get("", stamp)
    end
    -- The hosts hold their own names, however many there are; to remember these, too, would make a
    -- table a request as soon as there are more of them than can be remembered.
    local held = self.hosts:held(name, stamp)
    if held then
        return held
    end
    local found = self.young[name]
    if found and found.stamp == stamp then
        return found.host
    end
    found = self.old[name]
    if found and found.stamp == stamp then
        remember(self, name, found)
        return found.host
    end
    local host, broken = lookup(self, name, stamp)
    if host and host.name ~= name then
        remember(self, name, { host = host, stamp = stamp })
    end
    return host, broken
end

-- Loops of requests count: LuaJIT compiles what leaves such a loop in its first round, but nothing
-- that runs an ipairs.
local function match_prefix(paths, path)
    local length, lengths = #path, paths.lengths
    for i = 1, #lengths do
        local n = lengths[i]
        if n == length then
            local place = paths.prefix[path]
            if place then
                return place
            end
        elseif n < length and byte(path, n + 1) == SLASH then
            local place = paths.prefix[sub(path, 1, n)]
            if place then
                return place
            end
        end
    end
end

local function match_regex(self, host, path)
    local regexes = host.paths.regex
    for i = 1, #regexes do
        local pattern, route = regexes[i][1], host[regexes[i][2]]
        local found, err
        if route.rewrite then
            found, err = self.re_match(path, pattern, _M.REGEX_OPTIONS)
        else
            local _
            found, _, err = self.re_find(path, pattern, _M.REGEX_OPTIONS)
        end
        if found then
            return route, found
        end
        if err then
            -- Going on could hand the request to a route that was not meant for it.
            return nil, nil, err
        end
    end
end

--- Find the route for a path.
-- @tparam table host of host()
-- @tparam string path normalised and decoded ($uri)
-- @treturn[1] table route
-- @treturn[1] table captures of its regex, when the route rewrites; otherwise not to be used
-- @treturn[2] nil when there is none
-- @treturn[3] nil, nil, string why a regex could not be run
function _M:match(host, path)
    local paths = host.paths
    local place = paths.exact and paths.exact[path] or paths.lengths and match_prefix(paths, path)
    if place then
        return host[place]
    end
    if paths.regex then
        return match_regex(self, host, path)
    end
end

return _M
