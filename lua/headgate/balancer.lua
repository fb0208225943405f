--- Upstreams and the pick of a peer. An algorithm is a module with new(peers, previous, random),
-- which gives a table with pick(tried).
local round_robin = require "headgate.balancer.round_robin"
local variable = require "headgate.variable"

local format, gmatch, min, tonumber = string.format, string.gmatch, math.min, tonumber

local _M = {}

local ALGORITHMS = { round_robin = round_robin }
-- nginxconf.Pools.
local POOLS = 64
local DEFAULT_POLICY = { tries = 3 }

local function make(algorithm, addresses, weights, previous, random)
    if not addresses or #addresses == 0 then
        return nil
    end
    local peers = {}
    for i, address in ipairs(addresses) do
        peers[i] = { address = address, weight = weights and weights[i] or 1 }
    end
    return algorithm.new(peers, previous, random)
end

--- Make the build function of state:kind("upstream").
-- @tparam table o crc32: function(string) number; random: as math.random
-- @treturn function its values have count (of peers), pool, ready, draining
function _M.builder(o)
    return function(decoded, name, previous)
        local kind = decoded.algorithm or "round_robin"
        local algorithm = ALGORITHMS[kind]
        if not algorithm then
            return nil, "unknown algorithm " .. kind
        end
        local same = previous and previous.kind == kind and previous or {}
        local ready = make(algorithm, decoded.peers, decoded.weights, same.ready, o.random)
        local draining = make(algorithm, decoded.draining, nil, same.draining, o.random)
        return {
            kind = kind, ready = ready, draining = draining,
            count = #(decoded.peers or {}) + #(decoded.draining or {}),
            pool = format("%02d_headgate_pool", o.crc32(name) % POOLS),
        }
    end
end

--- Pick a peer. Draining ones serve when no ready one is left. When all were tried, any may be: the
-- connection that failed may have been a kept one that the peer had closed.
-- @tparam table upstream of builder()
-- @tparam table|nil tried set of addresses
-- @treturn string|nil address; nil when there is no peer at all
function _M.pick(upstream, tried)
    local ready, draining = upstream.ready, upstream.draining
    return ready and ready:pick(tried) or draining and draining:pick(tried)
        or tried and _M.pick(upstream, nil)
end

--- Read a policy: "connect,send,read,tries", times in milliseconds.
-- @treturn table tries; connect, send, read in seconds, nil for nginx's own
function _M.parse_policy(text)
    local connect, send, read, tries = text:match("^(%d+),(%d+),(%d+),(%d+)$")
    if not tries then
        return DEFAULT_POLICY
    end
    return {
        connect = tonumber(connect) / 1000, send = tonumber(send) / 1000,
        read = tonumber(read) / 1000, tries = tonumber(tries),
    }
end

--- The addresses in $upstream_addr ("10.0.0.1:80, 10.0.0.2:80 : ").
function _M.tried(upstream_addr)
    local tried = {}
    for address in gmatch(upstream_addr or "", "[^%s,]+") do
        tried[address] = true
    end
    return tried
end

--- Make the function of the balancer phase.
-- @tparam table o ngx, api: ngx.balancer; state, upstreams
-- @treturn function
function _M.new(o)
    local ngx, get, api = o.ngx, variable.reader(o.ngx.var), o.api
    local state, upstreams = o.state, o.upstreams
    -- Policies come from routes, and few differ: at most as many as were ever pushed.
    local policies = { [""] = DEFAULT_POLICY }

    local function first_try(upstream)
        local text = get("headgate_policy") or ""
        local policy = policies[text]
        if not policy then
            policy = _M.parse_policy(text)
            policies[text] = policy
        end
        local more = min(policy.tries, upstream.count) - 1
        if more > 0 then
            api.set_more_tries(more)
        end
        if policy.connect then
            api.set_timeouts(policy.connect, policy.send, policy.read)
        end
        return _M.pick(upstream, nil)
    end

    return function()
        -- Without a peer set nginx takes the server of the pool, which answers 503.
        local upstream = upstreams:get(get("headgate_upstream") or "", state:revision())
        if not upstream or upstream.count == 0 then
            return
        end
        local peer
        if api.get_last_failure() then
            peer = _M.pick(upstream, _M.tried(get("upstream_addr")))
        else
            peer = first_try(upstream)
        end
        local ok, err = api.set_current_peer(peer)
        if not ok then
            ngx.log(ngx.ERR, "peer ", peer, " of ", get("headgate_upstream"), ": ", err)
        end
    end
end

return _M
