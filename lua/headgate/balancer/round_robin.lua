--- Smooth weighted round robin, as nginx has it: with weights 5, 1, 1 the picks are a a b a c a a.
-- What a peer has been given is kept by its address, so that a change of the peers resets nobody.
local _M = {}
local mt = { __index = _M }

--- @tparam table peers list of {address, weight}
-- @tparam table|nil previous the balancer that this one replaces
-- @tparam function random as math.random: workers must not all start with the first peer
-- @treturn table with pick(tried)
function _M.new(peers, previous, random)
    local weighted = false
    for _, p in ipairs(peers) do
        weighted = weighted or p.weight ~= peers[1].weight
    end
    local self = setmetatable({ peers = peers, weighted = weighted, current = {}, last = 0 }, mt)
    for _, p in ipairs(peers) do
        self.current[p.address] = previous and previous.current[p.address] or 0
    end
    local address = previous and previous.address
    if not address then
        self.last = random(#peers) - 1
        return self
    end
    -- Peers are sorted: go on behind the one that was picked last, be it there or not.
    self.address = address
    for i, p in ipairs(peers) do
        if p.address <= address then
            self.last = i
        end
    end
    return self
end

local function pick_equal(self, tried)
    local peers, n = self.peers, #self.peers
    local at = self.last
    for _ = 1, n do
        at = at % n + 1
        local address = peers[at].address
        if not (tried and tried[address]) then
            self.last, self.address = at, address
            return address
        end
    end
end

local function pick_weighted(self, tried)
    local current, total, best = self.current, 0, nil
    for _, p in ipairs(self.peers) do
        local address = p.address
        if not (tried and tried[address]) then
            total = total + p.weight
            current[address] = current[address] + p.weight
            if not best or current[address] > current[best] then
                best = address
            end
        end
    end
    if best then
        current[best] = current[best] - total
        self.address = best
    end
    return best
end

--- Pick a peer.
-- @tparam table|nil tried set of addresses that failed for this request
-- @treturn string|nil address; nil when every peer was tried
function _M:pick(tried)
    if self.weighted then
        return pick_weighted(self, tried)
    end
    return pick_equal(self, tried)
end

return _M
