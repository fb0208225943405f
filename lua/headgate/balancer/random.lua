--- Weighted random. It remembers nothing, so that any number of proxies share the peers evenly.
local lottery = require "headgate.balancer.lottery"

local _M = {}
local mt = { __index = _M }

--- @tparam table peers list of {address, weight, blocked, share}, not empty
-- @param _ the balancer that this one replaces
-- @tparam table options random: as math.random
-- @treturn table with pick(ctx)
function _M.new(peers, _, options)
    return setmetatable({ peers = peers, lottery = lottery.new(peers, options.random) }, mt)
end

--- Pick a peer.
-- @tparam table ctx tried: set of addresses or nil; any: true to take blocked peers, too
-- @treturn table|nil peer
function _M:pick(ctx)
    return self.lottery:draw(ctx)
end

return _M
