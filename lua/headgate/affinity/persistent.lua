--- Sticky cookie, mode "persistent": the cookie names the peer, and the session stays with it as
-- long as it is there. The name is a keyed hash of the address: it tells a client nothing of where
-- pods are, and every proxy knows it.
local eligible = require "headgate.balancer.eligible"
local hashed = require "headgate.affinity.hashed"

local sub = string.sub

local _M = {}
local mt = { __index = _M }

-- Of SHA-1's 20; 16 characters of base64, which are all cookie-octets (RFC 6265 section 4.1.1).
local NAME_BYTES = 12

--- @tparam table o kind, id, ready, draining, previous, jar: see sticky_cookie.lua, cookie: with
--   key, which nobody outside knows; ngx: hmac_sha1, encode_base64
-- @treturn table with pick(upstream, ctx, pick)
function _M.new(o)
    local secret, previous = o.cookie.key or o.id, o.previous
    return setmetatable({
        kind = o.kind, jar = o.jar, key = o.key, change = o.cookie.changeOnFailure,
        secret = secret, ngx = o.ngx, ready = o.ready, draining = o.draining,
        -- By address: what was computed for the peers that stay.
        names = previous and previous.secret == secret and previous.names or {},
    }, mt)
end

--- Name all peers, when a name is needed for the first time.
local function directory(self)
    if self.peers then
        return self.peers
    end
    local known, names, peers, ngx = self.names, {}, {}, self.ngx
    for _, list in ipairs({ self.ready, self.draining }) do
        for _, peer in ipairs(list) do
            local address = peer.address
            local name = known[address]
                or ngx.encode_base64(sub(ngx.hmac_sha1(self.secret, address), 1, NAME_BYTES))
            names[address], peers[name] = name, peer
        end
    end
    self.names, self.peers = names, peers
    return peers
end

--- Pick the peer of the session, or begin one.
-- @tparam table upstream
-- @tparam table ctx tried: set of addresses that failed, or nil
-- @tparam function pick function(upstream, ctx) of the algorithm
-- @treturn table|nil peer
function _M:pick(upstream, ctx, pick)
    local peers, name = directory(self), self.jar:read()
    local own = name and peers[name]
    if own then
        ctx.any = false
        if eligible(own, ctx) then
            return own
        end
    end
    local peer = hashed.pick(self, upstream, ctx, pick)
    -- Without changeOnFailure a session goes back to its peer; to one that was only full it does so
    -- in any case.
    if peer and (not own or self.change and not own.full) then
        self.jar:send(self.names[peer.address])
    end
    return peer
end

return _M
