--- What happens to each request in the router's phase: it is answered here (404, 503, 413,
-- redirect), or its upstream, pool and policy are handed over and it goes on into its profile.
local ADMITTED = require("headgate.peers").ADMITTED
local former = require "headgate.former"
local label = require("headgate.metrics").label
local redirect = require "headgate.redirect"
local rewrite = require "headgate.rewrite"

local byte, gsub, lower, sub = string.byte, string.gsub, string.lower, string.sub
local floor, tonumber = math.floor, tonumber

local _M = {}

local UNDERSCORE = byte("_")
-- "07_http"
local SHARD_DIGITS = 2
local BODIES = {
    [400] = "400 Bad Request\n",
    [404] = "default backend - 404",
    [503] = "503 Service Temporarily Unavailable\n",
}

--- Pick one of several backends by weight.
-- @tparam table route
-- @tparam function random as math.random
-- @treturn string name of the upstream
function _M.pick_backend(route, random)
    local backends, weights = route.backends, route.weights
    if not weights then
        return backends[random(#backends)]
    end
    local total = 0
    for _, w in ipairs(weights) do
        total = total + w
    end
    local n = floor(random() * total)
    for i, w in ipairs(weights) do
        if n < w then
            return backends[i]
        end
        n = n - w
    end
    return backends[#backends]
end

--- The keepalive pool of an upstream for a profile.
-- @tparam table upstream of balancer.builder()
-- @tparam string|nil own what model.Profile.Pool() gave: nil for the common ones, "_…" for others
--   that are numbered as these are, or a whole name
-- @treturn string
function _M.pool(upstream, own)
    if not own then
        return upstream.pool
    end
    if byte(own) ~= UNDERSCORE then
        return own
    end
    local pools = upstream.pools
    if not pools then
        pools = {}
        upstream.pools = pools
    end
    local name = pools[own]
    if not name then
        name = sub(upstream.pool, 1, SHARD_DIGITS) .. own
        pools[own] = name
    end
    return name
end

--- Is a Host header another spelling of the name that nginx routes by?
local function same_host(name, header)
    if not header then
        return false
    end
    local plain = gsub(lower(header), ":%d*$", "")
    return plain == name or gsub(plain, "%.$", "") == name
end

--- Make the function of the phase.
-- @tparam table o ngx: nginx's table; state, router, upstreams, settings: of this worker; profiles:
--   set of the profiles that nginx.conf holds; report; random; peers: see peers.lua, nil for
--   requests that must not count; metrics: see metrics.lua, nil to count nothing; get: reads
--   variables of nginx; handover: see handover.lua; identify: function() gives the request its ID;
--   logged: the access log is on
-- @treturn function function(scheme): "http", "https", or "forwarded" when $headgate_scheme tells
function _M.new(o)
    local ngx, var = o.ngx, o.ngx.var
    local get, handover, identify = o.get, o.handover, o.identify
    local state, router, upstreams = o.state, o.router, o.upstreams

    --- nginx would ask a client that waits (Expect: 100-continue) for a body that nobody reads.
    local function ask_for_no_body()
        if get("http_expect") then
            ngx.req.clear_header("Expect")
        end
    end

    local function answer(status, retry_after)
        local body = BODIES[status]
        ask_for_no_body()
        if retry_after then
            ngx.header["Retry-After"] = retry_after
        end
        ngx.status = status
        ngx.header["Content-Type"] = "text/plain; charset=utf-8"
        ngx.header["Content-Length"] = #body
        ngx.print(body)
        return ngx.exit(ngx.HTTP_OK)
    end

    --- An absolute request target names the host (RFC 9112 section 3.2.2), not the header. Requests
    -- of HTTP/1.0 may lack both: an address names the server then.
    local function name_host(name, header)
        if name == "" then
            if (header or "") == "" then
                var.headgate_host = get("headgate_server_addr")
            end
        elseif not same_host(name, header) then
            var.headgate_host = name
        end
    end

    local function redirected(route, name, path, scheme, stamp)
        local forwarded = scheme == "forwarded"
        if (forwarded and get("headgate_scheme") or scheme) ~= "http" then
            return false
        end
        local settings = o.settings:get("global", stamp) or {}
        if redirect.exempt(path, settings.noTLSRedirect) then
            return false
        end
        local header = forwarded and get("headgate_best_host") or get("headgate_host")
        local host = redirect.name(header or "") or redirect.name(name)
        if not host then
            -- To serve in the clear what must be redirected would let any odd Host through.
            answer(400)
            return true
        end
        local rule = route.redirect
        local location = redirect.location(rule, host, get("request_uri"), settings.redirectPort)
        ngx.redirect(location, rule.status)
        return true
    end

    local function rewritten(route, captures)
        local path, query = rewrite.build(route.rewrite, captures, ngx.escape_uri)
        if query then
            ngx.req.set_uri_args(rewrite.join_query(query, get("args")))
        end
        ngx.req.set_uri(path, false, true)
    end

    --- Wait until an upstream with limits lets the request in. Where a peer's X-Accel-Redirect
    -- brought the request here again, its first part ends.
    local function let_in(upstream)
        if o.peers:counting() then
            o.peers:finished(handover.upstream() or "", 0, get)
            var.headgate_peer = ""
        end
        if not upstream.life.bounded then
            return true
        end
        local ok, retry_after = upstream.life.admission:enter()
        if ok then
            var.headgate_peer = ADMITTED
        end
        return ok, retry_after
    end

    local function hand_over(route, upstream, id)
        if o.metrics and not handover.upstream() then
            o.metrics:opened()
        end
        handover.give(id)
        identify()
        if o.logged then
            var.headgate_upstream = id
        end
        if route.policy then
            var.headgate_policy = route.policy
            upstream.life.policies = true
        end
        if route.cookiePath then
            var.headgate_cookie_path = route.cookiePath
        end
        if route.peerHost then
            var.headgate_peer_host = route.peerHost
        end
        local profile = route.profile
        if not profile then
            var.hg_pool = _M.pool(upstream, route.pool)
            return
        end
        -- A profile may be missing between a reload and the push that follows it: the default one
        -- serves then, if it speaks the same protocol.
        if not o.profiles[profile] then
            if route.pool then
                return answer(503)
            end
            var.hg_pool = upstream.pool
            return
        end
        var.hg_pool = _M.pool(upstream, route.pool)
        return ngx.exec("@" .. profile)
    end

    return function(scheme)
        local stamp = state:stamp()
        local name, header = get("host") or "", get("http_host")
        if header ~= name or name == "" then
            name_host(name, header)
        end
        local host, broken = router:host(name, stamp)
        if not host then
            return answer(broken and 503 or 404)
        end
        local path = get("uri")
        local route, captures, err = router:match(host, path)
        if host.before and route and route.profile then
            route, captures = former.route(o, host.before, path, route, captures)
        end
        if o.metrics then
            handover.tell(route and route.label or label(host.name))
        end
        if not route then
            if err then
                o.report:failed("host/" .. host.name, "regex: " .. err)
            end
            return answer(err and 503 or 404)
        end
        if route.noLog then
            var.headgate_log = "0"
        end
        if route.redirect and scheme ~= "https"
            and redirected(route, name, path, scheme, stamp) then
            return
        end
        if route.unavailable then
            return answer(503)
        end
        if route.maxBody and (tonumber(get("content_length")) or 0) > route.maxBody then
            -- nginx's own way: it asks for no body, and closes the connection behind its answer.
            return ngx.exit(413)
        end
        local id = route.backend or _M.pick_backend(route, o.random)
        local upstream = upstreams:get(id, stamp)
        if not upstream or upstream.count == 0 then
            return answer(503)
        end
        if o.peers then
            local ok, retry_after = let_in(upstream)
            if not ok then
                return answer(503, retry_after)
            end
        end
        if route.rewrite then
            rewritten(route, captures)
        end
        return hand_over(route, upstream, id)
    end
end

return _M
