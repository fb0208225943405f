--- Binds clients to peers, in front of the algorithm: by a cookie, by their address, or by a hash
-- of the request. One kind a file in affinity/, with the same two methods as an algorithm; a kind
-- picks the peer that the client is bound to, or lets the algorithm pick one and binds the client
-- to it.
local balanced = require "headgate.affinity.balanced"
local client_address = require "headgate.affinity.client_address"
local hash_key = require "headgate.hash_key"
local hashed = require "headgate.affinity.hashed"
local persistent = require "headgate.affinity.persistent"
local sticky_cookie = require "headgate.sticky_cookie"
local variable = require "headgate.variable"

local _M = {}

local function kind_of(decoded)
    if decoded.cookie then
        return decoded.cookie.persistent and persistent or balanced
    end
    return decoded.clientIP and client_address or hashed
end

--- @tparam table decoded an upstream as pushed, with cookie, clientIP or hash
-- @tparam table upstream of balancer.builder(): id, life with ready and draining
-- @tparam table o previous: the affinity that this one replaces, or nil; ngx: nginx's table;
--   random: as math.random; now: function() seconds; crc32; dict: shared dict that may evict, for
--   clientIP
-- @treturn table with pick(upstream, ctx, pick)
function _M.new(decoded, upstream, o)
    local kind, get = kind_of(decoded), variable.reader(o.ngx.var)
    local previous = o.previous
    return kind.new({
        kind = kind, id = upstream.id, ready = upstream.life.ready,
        draining = upstream.life.draining,
        previous = previous and previous.kind == kind and previous or nil,
        key = decoded.hash and hash_key.new(decoded.hash, get) or nil,
        cookie = decoded.cookie, timeout = decoded.clientIP,
        jar = decoded.cookie and sticky_cookie.new(decoded.cookie, { get = get, ngx = o.ngx }),
        get = get, ngx = o.ngx, random = o.random, now = o.now, crc32 = o.crc32, dict = o.dict,
    })
end

return _M
