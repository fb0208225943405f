--- Upstreams and the pick of a peer. An algorithm is a module with new(peers, previous, options),
-- which gives a table with peers and pick(ctx); docs/design/0004 tells what these hold.
local affinity = require "headgate.affinity"
local chash = require "headgate.balancer.chash"
local ewma = require "headgate.balancer.ewma"
local least_conn = require "headgate.balancer.least_conn"
local p2c = require "headgate.balancer.p2c"
local random = require "headgate.balancer.random"
local round_robin = require "headgate.balancer.round_robin"
local REFUSED, TIMED_OUT = require("headgate.peers").REFUSED, require("headgate.peers").TIMED_OUT

local format, gmatch, rep = string.format, string.gmatch, string.rep
local min, tonumber = math.min, tonumber

local _M = {}

local ALGORITHMS = {
    chash = chash, ewma = ewma, least_conn = least_conn, p2c = p2c, random = random,
    round_robin = round_robin,
}
-- nginxconf.Pools, and what makes their names differ in length (nginxconf.poolName).
local POOLS = 64
local LENGTHS = 8
local DEFAULT_POLICY = { tries = 3 }
-- ngx_core.h; ngx has no name for it.
local BUSY = -3
-- The status of a try whose connection was refused or broke, and of one that took too long.
local BAD_GATEWAY, GATEWAY_TIMEOUT = 502, 504
-- So many refused connections of a request are free. Not all: 2000 peers that refuse would hold the
-- worker for seconds with each request.
local FREE_TRIES = 8
local ROUNDS = 5

local function options(o, decoded)
    return {
        random = o.random, now = o.now, load = o.peers.load, subset = decoded.subset,
        hash = o.crc32,
    }
end

--- The pools are given out in the order in which a worker meets the upstreams: nginx finds the
-- first ones first, and each serves as many upstreams as the next.
local function pool_of(number)
    return format("%02d_http", number) .. rep("_", number % LENGTHS)
end

local function make(algorithm, peers, previous, opts)
    return #peers > 0 and algorithm.new(peers, previous, opts) or nil
end

-- What most upstreams have stands here once, and what only some have is a field of those only: a
-- table of Lua takes twice as much as soon as it has a fifth field.
local DEFAULT_KIND = "round_robin"
local upstream_mt = { __index = { kind = DEFAULT_KIND } }

--- Make the build function of state:kind("upstream").
-- @tparam table o crc32: function(string) number; random: as math.random; now: function() seconds
--   of a clock that never jumps; peers: see peers.lua; ngx: for affinity
-- @treturn function its values have kind, count (of peers), pool, life, ready and draining (nil
--   without peers), affinity (nil without)
function _M.builder(o)
    local met = 0

    local function next_pool()
        met = met + 1
        return pool_of((met - 1) % POOLS)
    end

    return function(decoded, name, previous)
        local kind = decoded.algorithm or DEFAULT_KIND
        local algorithm = ALGORITHMS[kind]
        if not algorithm then
            return nil, "unknown algorithm " .. kind
        end
        local life = o.peers:life(name, decoded)
        local opts = options(o, decoded)
        local same = previous and previous.kind == kind and previous or {}
        local upstream = setmetatable({
            life = life, ready = make(algorithm, life.ready, same.ready, opts),
            count = #life.ready + #life.draining,
            pool = previous and previous.pool or next_pool(),
        }, upstream_mt)
        if kind ~= DEFAULT_KIND then
            upstream.kind = kind
        end
        if #life.draining > 0 then
            upstream.draining = make(algorithm, life.draining, same.draining, opts)
        end
        life:observe_by(upstream.ready)
        if decoded.cookie or decoded.clientIP or decoded.hash then
            upstream.id = name
            upstream.affinity = affinity.new(decoded, upstream, {
                previous = previous and previous.affinity, ngx = o.ngx, random = o.random,
                now = o.now, crc32 = o.crc32, dict = o.dict,
            })
        end
        return upstream
    end
end

local function pick_in_order(upstream, ctx)
    local ready, draining = upstream.ready, upstream.draining
    return ready and ready:pick(ctx) or draining and draining:pick(ctx) or nil
end

--- Pick a peer by the algorithm. Draining ones serve when no ready one is left, blocked ones when
-- all others were tried.
-- @tparam table upstream of builder()
-- @tparam table ctx tried: set of addresses that failed, or nil; key: string, or nil
-- @treturn table|nil the peer
function _M.pick(upstream, ctx)
    ctx.any = false
    local peer = pick_in_order(upstream, ctx)
    if peer or upstream.life.limited then
        return peer
    end
    ctx.any = true
    return pick_in_order(upstream, ctx)
end

--- Pick a peer as pick() does, but ask first to which one the client is bound.
local function pick_bound(upstream, ctx)
    if upstream.affinity then
        return upstream.affinity:pick(upstream, ctx, _M.pick)
    end
    return _M.pick(upstream, ctx)
end

--- Take a peer: one that is full is blocked by enter() and another one is picked.
local function take_once(upstream, ctx)
    local life = upstream.life
    for _ = 1, upstream.count do
        local peer = pick_bound(upstream, ctx)
        if not peer or life:enter(peer) then
            return peer
        end
    end
end

--- Take a peer. Two workers that enter the same one at once may each see it full, and so on with
-- the next ones: the router let them in because there is room, so they look again.
local function take(upstream, ctx)
    local life = upstream.life
    life:look()
    local peer = take_once(upstream, ctx)
    if peer or not life.limited then
        return peer
    end
    for _ = 2, ROUNDS do
        life:look()
        peer = take_once(upstream, ctx)
        if peer then
            return peer
        end
    end
end

--- Read a policy: "connect,send,read,tries,total", times in milliseconds.
-- @treturn table tries; connect, send, read, total in seconds, nil for nginx's own or no bound
function _M.parse_policy(text)
    local connect, send, read, tries, total = text:match("^(%d+),(%d+),(%d+),(%d+),?(%d*)$")
    if not tries then
        return DEFAULT_POLICY
    end
    total = tonumber(total) or 0
    return {
        connect = tonumber(connect) / 1000, send = tonumber(send) / 1000,
        read = tonumber(read) / 1000, tries = tonumber(tries),
        total = total > 0 and total / 1000 or nil,
    }
end

--- The addresses in $upstream_addr ("10.0.0.1:80, 10.0.0.2:80 : ").
-- @treturn table set of them
-- @treturn string|nil the last one
-- @treturn number how many there are
function _M.tried(upstream_addr)
    local tried, last, n = {}, nil, 0
    for address in gmatch(upstream_addr or "", "[^%s,]+") do
        if address ~= ":" then
            tried[address], last, n = true, address, n + 1
        end
    end
    return tried, last, n
end

--- The seconds that all tries together took, by $upstream_response_time ("0.001, 0.002 : -").
function _M.spent(times)
    local sum = 0
    for seconds in gmatch(times or "", "[%d.]+") do
        sum = sum + (tonumber(seconds) or 0)
    end
    return sum
end

--- What $upstream_bytes_sent tells ("0, 120 : ").
-- @treturn number how many tries sent nothing
-- @treturn boolean the last one did not
function _M.unsent(bytes)
    local n, last = 0, nil
    for sent in gmatch(bytes or "", "%d+") do
        last = sent == "0"
        n = n + (last and 1 or 0)
    end
    return n, last == true
end

--- Make the function of the balancer phase.
-- @tparam table o ngx, api: ngx.balancer; get: reads variables of nginx; handover: see
--   handover.lua; state, upstreams
-- @treturn function
function _M.new(o)
    local ngx, get, api = o.ngx, o.get, o.api
    local state, upstreams, handed = o.state, o.upstreams, o.handover.upstream
    -- Policies come from routes, and few differ: at most as many as were ever pushed.
    local policies = { [""] = DEFAULT_POLICY }
    -- One table for all requests: the phase cannot yield.
    local ctx = {}

    local function policy_of(life)
        if not life.policies then
            return DEFAULT_POLICY
        end
        local text = get("headgate_policy") or ""
        local policy = policies[text]
        if not policy then
            policy = _M.parse_policy(text)
            policies[text] = policy
        end
        return policy
    end

    local function set(life, peer, mark)
        local ok, err = api.set_current_peer(peer.address)
        if not ok then
            if life.tracked then
                life:leave(peer)
            end
            ngx.log(ngx.ERR, "peer ", peer.address, " of ", handed(), ": ", err)
            return
        end
        if life.tracked then
            ngx.var.headgate_peer = life:mark(peer, mark or get("headgate_peer") or "")
        end
    end

    --- Give up. nginx makes 502 of it, of any other code 500; where a time-out was the reason, an
    -- error_page of nginx.conf makes it 504.
    local function refuse(mark, status)
        local why = status == GATEWAY_TIMEOUT and TIMED_OUT or ""
        ngx.var.headgate_peer = mark .. why .. REFUSED
        return ngx.exit(BUSY)
    end

    local function first(upstream)
        local life = upstream.life
        ctx.tried, ctx.key = nil, nil
        local peer = take(upstream, ctx)
        if not peer then
            return
        end
        local policy = policy_of(life)
        if policy.connect then
            api.set_timeouts(policy.connect, policy.send, policy.read)
        end
        -- One more at a time, and only while the budget has one: without a try left nginx gives the
        -- client the error as it is, but a try that is refused later always ends in 502.
        if life:began() and policy.tries > 1 and upstream.count > 1 then
            api.set_more_tries(1)
        end
        return set(life, peer)
    end

    local function again(upstream, status)
        local life, tried, last, tries = upstream.life, _M.tried(get("upstream_addr"))
        local mark = life:failed(last, status, get("upstream_header_time"),
            get("headgate_peer") or "")
        local policy = policy_of(life)
        local late = policy.total and _M.spent(get("upstream_response_time")) >= policy.total
        local unsent, last_unsent = _M.unsent(get("upstream_bytes_sent"))
        -- A refused connection cost no peer anything, and the request was sent to none: it may try
        -- some others, and neither tries nor the budget count that. In a rollout, half of the peers
        -- may refuse before anybody tells that they are gone.
        unsent = min(unsent, FREE_TRIES)
        local free = last_unsent and status == BAD_GATEWAY and unsent < FREE_TRIES
        if late or not life:retry(free) then
            return refuse(mark, status)
        end
        ctx.tried, ctx.key = tried, nil
        local peer = take(upstream, ctx)
        if not peer and tries >= upstream.count then
            -- nginx gives a try more when a kept connection failed, which the peer had closed:
            -- where that leaves no other one, it may be tried again.
            ctx.tried = nil
            peer = take(upstream, ctx)
        end
        if not peer then
            return refuse(mark, status)
        end
        if tries - unsent + 1 < policy.tries and tries + 1 < upstream.count
            and life:may_retry() then
            api.set_more_tries(1)
        end
        return set(life, peer, mark)
    end

    return function()
        -- Without a peer set nginx takes the server of the pool, which answers 503.
        local upstream = upstreams:get(handed() or "", state:stamp())
        if not upstream or upstream.count == 0 then
            return
        end
        local failure, status = api.get_last_failure()
        if failure then
            return again(upstream, status)
        end
        return first(upstream)
    end
end

return _M
