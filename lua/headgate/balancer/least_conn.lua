--- Fewest requests in flight for the weight. Peers that are even take turns, so that an upstream
-- with little to do is not served by its first peer alone; with weights, turns are as those of
-- round_robin.
local eligible = require "headgate.balancer.eligible"

local _M = {}
local mt = { __index = _M }

-- Looking at 10,000 peers would cost a request more than all the rest. Of more peers than these, as
-- many are looked at, beginning where the last request ended.
local WINDOW = 128

--- @tparam table peers list of {address, weight, blocked, share}, not empty
-- @tparam table|nil previous the balancer that this one replaces: its turns are gone on with
-- @tparam table options random: as math.random; load: function(peer), requests in flight
-- @treturn table with pick(ctx)
function _M.new(peers, previous, options)
    local self = { peers = peers, load = options.load, turn = {}, values = {}, weighted = false }
    local known = previous and previous.turn or {}
    for _, p in ipairs(peers) do
        self.weighted = self.weighted or p.weight ~= peers[1].weight
        self.turn[p.address] = known[p.address] or 0
    end
    self.last = options.random(#peers) - 1
    return setmetatable(self, mt)
end

--- Requests in flight for what the peer can take; nil when it may not be picked.
local function value(self, peer, ctx)
    if eligible(peer, ctx) then
        return self.load(peer) / (peer.weight * (peer.share or 1))
    end
end

local function pick_equal(self, ctx, width)
    local peers, n, at = self.peers, #self.peers, self.last
    local best, least, found
    for _ = 1, width do
        at = at % n + 1
        local v = value(self, peers[at], ctx)
        if v and not (least and v >= least) then
            best, least, found = peers[at], v, at
        end
    end
    if best then
        -- Of few peers the turn goes on behind the one picked; of many behind those looked at.
        self.last = width == n and found or at
    end
    return best
end

local function pick_weighted(self, ctx, width)
    local peers, n, from, values = self.peers, #self.peers, self.last, self.values
    local least
    for i = 1, width do
        local v = value(self, peers[(from + i - 1) % n + 1], ctx) or false
        values[i] = v
        if v and not (least and v >= least) then
            least = v
        end
    end
    local turn, total, best = self.turn, 0, nil
    for i = 1, width do
        if least and values[i] == least then
            local p = peers[(from + i - 1) % n + 1]
            total = total + p.weight
            turn[p.address] = turn[p.address] + p.weight
            if not best or turn[p.address] > turn[best.address] then
                best = p
            end
        end
    end
    if best then
        turn[best.address] = turn[best.address] - total
        self.last = width == n and from or from + width
    end
    return best
end

local function look(self, ctx, width)
    if self.weighted then
        return pick_weighted(self, ctx, width)
    end
    return pick_equal(self, ctx, width)
end

--- Pick a peer.
-- @tparam table ctx tried: set of addresses or nil; any: true to take blocked peers, too
-- @treturn table|nil peer
function _M:pick(ctx)
    local n = #self.peers
    if n <= WINDOW then
        return look(self, ctx, n)
    end
    -- All that were looked at may be out.
    return look(self, ctx, WINDOW) or look(self, ctx, n)
end

return _M
