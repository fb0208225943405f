--- The faster of two: peers are drawn by weight, and the one wins whose response time is shorter,
-- as an exponentially weighted moving average that decays in 10 s, times its requests in flight.
-- Averages are those of this worker: they are worth some seconds, less than a lock would cost.
local lottery = require "headgate.balancer.lottery"

local exp, max = math.exp, math.max

local _M = {}
local mt = { __index = _M }

-- As in ingress-nginx.
local DECAY_SECONDS = 10
-- What a failed request counts as, at least: a peer that fails at once must not look fast.
local FAILURE_SECONDS = 1
-- A peer nobody knows yet, or not any more, is not infinitely fast: its requests in flight count.
local LEAST_SECONDS = 0.0001

--- The average at a later moment: what was not seen for long counts for less.
local function decayed(value, touched, now)
    local idle = now - touched
    if idle <= 0 then
        return value
    end
    return value * exp(-idle / DECAY_SECONDS)
end

local function mean(self, peers, now)
    local sum, count = 0, 0
    for _, p in ipairs(peers) do
        local value = self.value[p.address]
        if value then
            sum, count = sum + decayed(value, self.touched[p.address], now), count + 1
        end
    end
    return count > 0 and sum / count or 0
end

--- @tparam table peers list of {address, weight, blocked, share}, not empty
-- @tparam table|nil previous the balancer that this one replaces: peers that stay keep their
--   average, new ones begin with the mean of theirs
-- @tparam table options random: as math.random; load: function(peer), requests in flight;
--   now: function(), seconds
-- @treturn table with pick(ctx), observe(peer, seconds, failed), average(peer)
function _M.new(peers, previous, options)
    local self = {
        peers = peers, lottery = lottery.new(peers, options.random),
        load = options.load, now = options.now, value = {}, touched = {},
        slowest = previous and previous.slowest or 0,
        slowest_at = previous and previous.slowest_at or 0,
    }
    local now, sum = options.now(), 0
    local known = previous and previous.value or {}
    for _, p in ipairs(peers) do
        local address = p.address
        sum = sum + p.weight
        if known[address] then
            self.value[address], self.touched[address] = known[address], previous.touched[address]
        end
    end
    self.usual = sum / #peers
    local start = mean(self, peers, now)
    for _, p in ipairs(peers) do
        if not self.value[p.address] then
            self.value[p.address], self.touched[p.address] = start, now
        end
    end
    return setmetatable(self, mt)
end

--- The average response time of a peer as of now.
-- @tparam table peer
-- @treturn number seconds; 0 for one that is not known
function _M:average(peer)
    local value = self.value[peer.address]
    return value and decayed(value, self.touched[peer.address], self.now()) or 0
end

--- Weights decide on how often a peer is drawn, and here on how much it may have in flight.
local function cost(self, peer)
    local queued = self.load(peer) * self.usual / (peer.weight * (peer.share or 1))
    return max(self:average(peer), LEAST_SECONDS) * (queued + 1)
end

--- Take a response time into the average.
-- @tparam table peer
-- @tparam number seconds from the connect to the end of the answer
-- @tparam boolean|nil failed there was none, or no good one
function _M:observe(peer, seconds, failed)
    local address = peer.address
    local value, now = self.value[address], self.now()
    if not value then
        return -- it left while it answered
    end
    local slowest = decayed(self.slowest, self.slowest_at, now)
    if failed then
        -- Worse than any other, however slow these are.
        seconds = max(seconds, FAILURE_SECONDS, 2 * slowest)
    elseif seconds > slowest then
        self.slowest, self.slowest_at = seconds, now
    end
    local idle = max(now - self.touched[address], 0)
    local weight = exp(-idle / DECAY_SECONDS)
    self.value[address] = value * weight + seconds * (1 - weight)
    self.touched[address] = now
end

--- Pick a peer.
-- @tparam table ctx tried: set of addresses or nil; any: true to take blocked peers, too
-- @treturn table|nil peer
function _M:pick(ctx)
    local draws = self.lottery
    local a = draws:draw(ctx)
    local b = a and draws:draw(ctx, a)
    if b and cost(self, b) < cost(self, a) then
        return b
    end
    return a
end

return _M
