--- What `headgate explain` asks: the request phase itself, run on sockets of its own, with a router
-- and upstreams that pass every call on to the real ones and note what came of it. So nothing is
-- decided a second time, and the phase that serves clients carries no code for this.
local find, pairs, ipairs = string.find, pairs, ipairs

local _M = {}

--- The rule of a host that leads to a route.
-- @treturn string|nil type: "exact", "prefix" or "regex"
-- @treturn string|nil path, as it stands in the host; prefixes without their trailing slash
local function rule(host, route)
    for _, kind in ipairs({ "exact", "prefix" }) do
        for path, place in pairs(host.paths[kind] or {}) do
            if host[place] == route then
                return kind, path
            end
        end
    end
    for _, r in ipairs(host.paths.regex or {}) do
        if host[r[2]] == route then
            return "regex", r[1]
        end
    end
end

local function number_of(host, route)
    for i, r in ipairs(host) do
        if r == route then
            return i
        end
    end
end

local function describe(host, route)
    local kind, path = rule(host, route)
    return {
        type = kind, path = path, number = number_of(host, route), source = route.source,
        unavailable = route.unavailable, maxBody = route.maxBody, policy = route.policy,
        profile = route.profile, redirects = route.redirect ~= nil, rewrites = route.rewrite ~= nil,
        backends = route.backends,
    }
end

--- Watch a router and upstreams.
-- @tparam table o router, upstreams: the real ones; tell: function(table), called with all that is
--   known of the present request whenever there is more; revision: function() the committed one
-- @treturn table router, upstreams: to be given to the request phase
function _M.watch(o)
    local seen = {}
    local router, upstreams = {}, {}

    -- The phase calls this one first.
    function router.host(_, name, stamp)
        local host, broken = o.router:host(name, stamp)
        seen = { revision = o.revision(), name = name, host = host and host.name, broken = broken }
        o.tell(seen)
        return host, broken
    end

    function router.match(_, host, path)
        local route, captures, err = o.router:match(host, path)
        seen.path, seen.error = path, err
        seen.route = route and describe(host, route)
        o.tell(seen)
        return route, captures, err
    end

    function upstreams.get(_, id, stamp)
        local upstream, broken = o.upstreams:get(id, stamp)
        seen.upstream = {
            id = id, count = upstream and upstream.count or 0, known = upstream ~= nil,
            algorithm = upstream and upstream.kind,
        }
        o.tell(seen)
        return upstream, broken
    end

    return { router = router, upstreams = upstreams }
end

--- Make the function of the phase on the sockets of explain. The PROXY protocol brings the
-- addresses of client and listener: what nginx derives from those of the connection is put right
-- first.
-- @tparam table o var: ngx.var; route: the request phase over what watch() gave
-- @treturn function function(scheme), as that of the request phase
function _M.phase(o)
    local var = o.var
    return function(scheme)
        local address = var.proxy_protocol_server_addr or ""
        var.headgate_server_addr = find(address, ":", 1, true) and "[" .. address .. "]" or address
        if scheme == "forwarded" then
            var.headgate_trusted = var.headgate_explain_trusted
        end
        return o.route(scheme)
    end
end

--- Make the content handler of the peer that explained requests are sent to: it tells what a real
-- peer would have been sent.
-- @tparam table o ngx, encode
-- @treturn function
function _M.echo(o)
    local ngx = o.ngx
    return function()
        ngx.status = 200
        -- In the head, for requests whose answer has no body.
        ngx.header["X-Headgate-Sent"] = o.encode({
            request = ngx.var.request or "", host = ngx.var.http_host or "",
        })
        ngx.header["Content-Length"] = 0
        return ngx.exit(200)
    end
end

return _M
