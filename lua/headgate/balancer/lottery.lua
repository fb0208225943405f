--- Draws peers by weight: what random, p2c and ewma have in common, and chash where a request has
-- nothing to hash.
local eligible = require "headgate.balancer.eligible"

local floor = math.floor

local _M = {}
local mt = { __index = _M }

-- So often a draw may meet a peer that is out before the eligible ones are counted.
local DRAWS = 4
-- The least share of a peer in slow start: a lottery of such peers only must have a winner.
local LEAST = 0.001

--- @tparam table peers list of {address, weight, blocked, share}, not empty
-- @tparam function random as math.random
-- @treturn table with draw(ctx, except)
function _M.new(peers, random)
    local self = { peers = peers, count = #peers, random = random }
    local weighted, sum, sums = false, 0, {}
    for i, p in ipairs(peers) do
        weighted = weighted or p.weight ~= peers[1].weight
        sum = sum + p.weight
        sums[i] = sum
    end
    self.sums = weighted and sums or nil
    return setmetatable(self, mt)
end

--- The first peer whose sum of weights is above a ticket.
local function find(sums, ticket)
    local low, high = 1, #sums
    while low < high do
        local middle = floor((low + high) / 2)
        if sums[middle] > ticket then
            high = middle
        else
            low = middle + 1
        end
    end
    return low
end

local function chance(peer)
    local share = peer.share
    if not share then
        return peer.weight
    end
    return peer.weight * (share > LEAST and share or LEAST)
end

--- Draw among the eligible peers alone, after looking at all.
local function draw_exactly(self, ctx, except)
    local peers, total = self.peers, 0
    for i = 1, self.count do
        local p = peers[i]
        if p ~= except and eligible(p, ctx) then
            total = total + chance(p)
        end
    end
    local ticket, last = self.random() * total, nil
    for i = 1, self.count do
        local p = peers[i]
        if p ~= except and eligible(p, ctx) then
            last = p
            ticket = ticket - chance(p)
            if ticket < 0 then
                return p
            end
        end
    end
    return last
end

--- Draw a peer: each has a chance by its weight, and by its share while it is in slow start.
-- @tparam table ctx as for pick
-- @tparam table|nil except a peer that is not drawn
-- @treturn table|nil peer; nil when there is no eligible one
function _M:draw(ctx, except)
    local peers, sums, random = self.peers, self.sums, self.random
    for _ = 1, DRAWS do
        local at = sums and find(sums, random() * sums[self.count]) or random(self.count)
        local p = peers[at]
        local share = p.share
        if p ~= except and eligible(p, ctx) and (not share or random() < share) then
            return p
        end
    end
    return draw_exactly(self, ctx, except)
end

return _M
