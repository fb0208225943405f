--- Binds a client's address to a peer until it was idle for some time (a Service's
-- sessionAffinity: ClientIP). A consistent hash of the address picks the peer of a client that
-- nobody knows; a dict of the workers remembers each client that came, so that new peers take no
-- known one. The dict is bounded and evicts whoever did not come for longest: it falls back to the
-- hash, as on a proxy that has just taken over, and most find the same peer there.
local CLOCK_JUMP = require "headgate.clock_jump"
local eligible = require "headgate.balancer.eligible"
local hashed = require "headgate.affinity.hashed"
local territory = require "headgate.affinity.territory"

local floor, format, max, sub = math.floor, string.format, math.max, string.sub

local _M = {}
local mt = { __index = _M }

local IPV4_IN_IPV6 = ("\0"):rep(10) .. "\255\255"
-- A binding is written anew after this part of its time, not with each request.
local REFRESH_PART = 16

--- @tparam table o kind, id, ready, draining, previous, key, timeout: seconds; get; now; crc32;
--   dict: shared dict that may evict
-- @treturn table with pick(upstream, ctx, pick)
function _M.new(o)
    local previous = o.previous
    local self = {
        kind = o.kind, key = o.key, get = o.get, now = o.now, dict = o.dict, peers = {},
        prefix = format("%08x", o.crc32(o.id)),
        refresh = max(1, floor(o.timeout / REFRESH_PART)),
        territory = territory.new(o.ready, o.draining, previous and previous.territory, o.crc32),
    }
    -- A binding that was not written anew must not end early.
    self.life = o.timeout + self.refresh
    for _, list in ipairs({ o.ready, o.draining }) do
        for _, peer in ipairs(list) do
            self.peers[peer.address] = peer
        end
    end
    return setmetatable(self, mt)
end

--- The address of the client: 4 or 16 bytes; one of IPv4 has the same form on any listener.
local function client(self)
    local address = self.get("binary_remote_addr") or ""
    if #address == 16 and sub(address, 1, 12) == IPV4_IN_IPV6 then
        return sub(address, 13)
    end
    return address
end

local function bind(self, key, peer, now)
    self.dict:set(key, peer.address, self.life + CLOCK_JUMP, now)
end

--- Who a client is bound to, and since when that is written.
local function binding(self, key, now)
    local address, written = self.dict:get(key)
    if address and now - (written or 0) < self.life then
        return self.peers[address], written
    end
end

--- Pick the peer of the client.
-- @tparam table upstream
-- @tparam table ctx tried: set of addresses that failed, or nil
-- @tparam function pick function(upstream, ctx) of the algorithm: it picks, and binds nobody, when
--   all are out
-- @treturn table|nil peer
function _M:pick(upstream, ctx, pick)
    ctx.any = false
    local address, now = client(self), floor(self.now())
    local key = self.prefix .. address
    local own, written = binding(self, key, now)
    if own then
        if now - written >= self.refresh then
            bind(self, key, own, now)
        end
        if eligible(own, ctx) then
            return own
        end
    end
    local peer = self.territory:settle(address, ctx)
    if not peer then
        return hashed.pick(self, upstream, ctx, pick)
    end
    if not own then
        bind(self, key, peer, now)
    end
    return peer
end

return _M
