--- Peers for the specs of algorithms and affinity, and what they pick.
local bit = require "bit"
local fixture = require "fixture"

local _M = {}

local hashes = {}

--- CRC-32, computed once for each text: that of nginx is a call into C.
function _M.hash(s)
    local h = hashes[s]
    if not h then
        h = fixture.crc32(s)
        hashes[s] = h
    end
    return h
end

--- Peers of {address, weight} or of addresses.
function _M.peers(list)
    local out = {}
    for i, p in ipairs(list) do
        local one = type(p) == "table" and p or { p }
        out[i] = { address = one[1], weight = one[2] or 1, load = 0 }
    end
    return out
end

--- n peers with addresses as pods have them.
function _M.pods(n, weight)
    local out = {}
    for i = 1, n do
        out[i] = {
            address = ("10.244.%d.%d:8080"):format(math.floor(i / 250), i % 250 + 1),
            weight = weight or 1, load = 0,
        }
    end
    return out
end

--- Addresses of n picks, joined by spaces.
function _M.picks(balancer, n, ctx)
    local out = {}
    for i = 1, n do
        local peer = balancer:pick(ctx or {})
        out[i] = peer and peer.address or "-"
    end
    return table.concat(out, " ")
end

--- How often each address is picked in n picks.
function _M.counts(balancer, n, ctx)
    local out = {}
    for _ = 1, n do
        local peer = balancer:pick(ctx or {})
        out[peer.address] = (out[peer.address] or 0) + 1
    end
    return out
end

--- A random number generator with a fixed seed (as math.random, xorshift of 32 bits), so that a
-- failure is one tomorrow, too. LUA_SEED tries others.
function _M.random()
    local x = 2463534242 + (tonumber(os.getenv("LUA_SEED")) or 0)
    return function(n)
        x = bit.bxor(x, bit.lshift(x, 13))
        x = bit.bxor(x, bit.rshift(x, 17))
        x = bit.bxor(x, bit.lshift(x, 5))
        local unit = bit.band(x, 0x7FFFFFFF) / 0x80000000
        return n and math.floor(unit * n) + 1 or unit
    end
end

--- The options of an algorithm; the load of a peer is its field "load".
function _M.options(o)
    local options = {
        random = _M.random(), load = function(p) return p.load end, now = function() return 0 end,
        hash = _M.hash,
    }
    for k, v in pairs(o or {}) do
        options[k] = v
    end
    return options
end

return _M
