--- A consistent hash over ready and draining peers: whoever belongs to a draining peer stays with
-- it, and nobody else comes to it.
local chash = require "headgate.chash"

local _M = {}
local mt = { __index = _M }

local function joined(a, b)
    local all = {}
    for i = 1, #a do
        all[i] = a[i]
    end
    for i = 1, #b do
        all[#all + 1] = b[i]
    end
    return all
end

--- @tparam table ready, draining: lists of peers
-- @tparam table|nil previous the one that this replaces: what stays equal is not built again
-- @tparam function crc32
function _M.new(ready, draining, previous, crc32)
    local self = { crc32 = crc32, ready = ready, leaving = {} }
    -- When all are leaving, none is left to be preferred.
    if #ready > 0 and #draining > 0 then
        for _, p in ipairs(draining) do
            self.leaving[p.address] = true
        end
    end
    self.all = chash.new(joined(ready, draining), previous and previous.all, crc32)
    if not next(self.leaving) then
        self.staying = self.all
    else
        self.before = previous and previous.staying
    end
    return setmetatable(self, mt)
end

--- The circle of those that stay: made when it is first needed.
local function staying(self)
    if not self.staying then
        self.staying = chash.new(self.ready, self.before, self.crc32)
        self.before = nil
    end
    return self.staying
end

--- The peer that a key belongs to, be it out or not.
-- @tparam string key
-- @treturn table
function _M:owner(key)
    return self.all:owner(key)
end

--- The peer for a key that is bound already.
-- @tparam string key
-- @tparam table ctx
-- @treturn table|nil nil when all are out
function _M:keep(key, ctx)
    local peer = self.all:winner(key, ctx)
    if peer and self.leaving[peer.address] and self.all:owner(key) ~= peer then
        return staying(self):winner(key, ctx) or peer
    end
    return peer
end

--- The peer for a key that is new.
-- @tparam string key
-- @tparam table ctx
-- @treturn table|nil nil when all that stay are out
function _M:settle(key, ctx)
    return staying(self):winner(key, ctx)
end

--- The peer that a new key would stay with: its owner, if that one can be had now and stays.
-- @treturn table|nil
function _M:home(key, ctx)
    local peer = self.all:winner(key, ctx)
    if peer and not self.leaving[peer.address] and self.all:owner(key) == peer then
        return peer
    end
end

return _M
