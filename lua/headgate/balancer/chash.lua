--- Consistent hash of what the upstream says (hash_key.lua); requests that have none of it are
-- drawn. With a subset each key has a group of so many peers, and one of them is drawn.
local chash = require "headgate.chash"
local lottery = require "headgate.balancer.lottery"

local min = math.min

local _M = {}
local mt = { __index = _M }

--- @tparam table peers list of {address, weight, blocked, share}, not empty
-- @tparam table|nil previous the balancer that this one replaces
-- @tparam table options random: as math.random; hash: function(string) number of 32 bits;
--   subset: size of a key's group, or nil
-- @treturn table with pick(ctx)
function _M.new(peers, previous, options)
    return setmetatable({
        peers = peers, random = options.random,
        circle = chash.new(peers, previous and previous.circle, options.hash),
        lottery = lottery.new(peers, options.random),
        subset = options.subset and min(options.subset, #peers) or 1,
    }, mt)
end

--- Pick a peer.
-- @tparam table ctx tried: set of addresses or nil; key: string or nil; any: true to take blocked
--   peers, too
-- @treturn table|nil peer
function _M:pick(ctx)
    local key, subset = ctx.key, self.subset
    -- A group of all peers needs no hash.
    if not key or subset > 1 and subset == #self.peers then
        return self.lottery:draw(ctx)
    end
    if subset > 1 then
        return self.circle:ranked(key, ctx, self.random(subset))
    end
    return self.circle:winner(key, ctx)
end

return _M
