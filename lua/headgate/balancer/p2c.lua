--- Power of two choices: of two peers drawn by weight, the one with fewer requests in flight for
-- its weight. Almost as even as least_conn, at the same cost for any number of peers, and no herd:
-- proxies that do not know of each other do not all run to the same idle peer.
local lottery = require "headgate.balancer.lottery"

local _M = {}
local mt = { __index = _M }

--- @tparam table peers list of {address, weight, blocked, share}, not empty
-- @param _ the balancer that this one replaces
-- @tparam table options random: as math.random; load: function(peer), requests in flight
-- @treturn table with pick(ctx)
function _M.new(peers, _, options)
    return setmetatable({
        peers = peers, lottery = lottery.new(peers, options.random), load = options.load,
    }, mt)
end

--- Pick a peer.
-- @tparam table ctx tried: set of addresses or nil; any: true to take blocked peers, too
-- @treturn table|nil peer
function _M:pick(ctx)
    local draws, load = self.lottery, self.load
    local a = draws:draw(ctx)
    local b = a and draws:draw(ctx, a)
    if not b then
        return a
    end
    if load(b) * a.weight * (a.share or 1) < load(a) * b.weight * (b.share or 1) then
        return b
    end
    return a
end

return _M
