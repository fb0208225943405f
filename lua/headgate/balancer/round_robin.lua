--- Smooth weighted round robin, as nginx has it: with weights 5, 1, 1 the picks are a a b a c a a.
-- What a peer has been given is kept by its address, so that a change of the peers resets nobody.
local eligible = require "headgate.balancer.eligible"
local lottery = require "headgate.balancer.lottery"

local _M = {}
local mt = { __index = _M }

-- To be smooth is to look at all peers, for every request. More than these with different weights
-- are drawn by weight.
local MAX_WEIGHTED = 256
-- Most upstreams have one of these, without weights: what is the same for all stands here once.
_M.random, _M.weighted = math.random, false

--- Where a round that ended with some peer goes on among others: behind that peer or, when it is
-- gone, behind the nearest one before it that is left. Peers keep their order.
local function position(peers, previous)
    local at = {}
    for i, p in ipairs(peers) do
        at[p.address] = i
    end
    for i = previous.last, 1, -1 do
        local found = at[previous.peers[i].address]
        if found then
            return found
        end
    end
    return 0
end

--- @tparam table peers list of {address, weight, blocked, share}, not empty
-- @tparam table|nil previous the balancer that this one replaces
-- @tparam table options random: as math.random; workers must not all start with the first peer
-- @treturn table with pick(ctx)
function _M.new(peers, previous, options)
    local weighted, total = false, 0
    for _, p in ipairs(peers) do
        weighted, total = weighted or p.weight ~= peers[1].weight, total + p.weight
    end
    local self = {
        peers = peers,
        last = previous and position(peers, previous) or options.random(#peers) - 1,
    }
    if options.random ~= _M.random then
        self.random = options.random
    end
    if weighted then
        local known = previous and previous.current or {}
        -- Were 100 a round and are 10 now, a debt of 50 is one of 5.
        local scale = previous and previous.total and total / previous.total or 0
        self.weighted, self.total, self.current = true, total, {}
        for _, p in ipairs(peers) do
            self.current[p.address] = (known[p.address] or 0) * scale
        end
    end
    if weighted and #peers > MAX_WEIGHTED then
        self.lottery = lottery.new(peers, options.random)
    end
    return setmetatable(self, mt)
end

--- @tparam boolean all take peers in slow start for every request
local function pick_equal(self, ctx, all)
    local peers, n, random = self.peers, #self.peers, self.random
    local at = self.last
    for _ = 1, n do
        at = at % n + 1
        local p = peers[at]
        local share = p.share
        if eligible(p, ctx) and (all or not share or random() < share) then
            self.last = at
            return p
        end
    end
end

local function pick_weighted(self, ctx)
    local peers, current, total, best = self.peers, self.current, 0, nil
    for i = 1, #peers do
        local p = peers[i]
        if eligible(p, ctx) then
            local address, weight = p.address, p.weight * (p.share or 1)
            total = total + weight
            current[address] = current[address] + weight
            if not best or current[address] > current[best.address] then
                best = p
            end
        end
    end
    if best then
        current[best.address] = current[best.address] - total
    end
    return best
end

--- Pick a peer.
-- @tparam table ctx tried: set of addresses or nil; any: true to take blocked peers, too
-- @treturn table|nil peer
function _M:pick(ctx)
    if self.lottery then
        return self.lottery:draw(ctx)
    end
    if self.weighted then
        return pick_weighted(self, ctx)
    end
    return pick_equal(self, ctx, false) or pick_equal(self, ctx, true)
end

return _M
